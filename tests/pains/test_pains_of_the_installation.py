"""Pains 17 and 18: what has to be there before the first job can run, and what refuses a bad one."""

import json

import pytest
import yaml

import testbed
from ddpjob_operator.api import names
from pain_steps import ROOT
from testbed.helm import Helm
from testbed.kubectl import KubectlError

CHART = ROOT / "charts/ddpjob-operator"
GOOD = {"nodes": 2, "trainer": {"recipe": "digits"}}


def objects() -> list[dict]:
    """All objects of the chart, those of `helm test` included."""
    text = Helm()("template", "ddpjob-operator", CHART, "--namespace", "ddpjob-system", values={"replicas": 2})
    return [document for document in yaml.safe_load_all(text) if document]


def hook(item: dict) -> str | None:
    """When helm makes the object, if not with the release."""
    return item["metadata"].get("annotations", {}).get("helm.sh/hook")


def create(cluster: testbed.ControlPlane, namespace: str, spec: dict, name: str = "job") -> str:
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}
    return cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(body))


def test_pain_17_nothing_that_is_installed_serves_a_webhook_or_holds_a_certificate() -> None:
    installed = [item for item in objects() if hook(item) is None]
    assert {item["kind"] for item in installed} == {
        *("CustomResourceDefinition", "Deployment", "PodDisruptionBudget", "ServiceAccount"),
        *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    }
    (crd,) = (item for item in installed if item["kind"] == "CustomResourceDefinition")
    assert crd["spec"].get("conversion", {}).get("strategy", "None") == "None"
    (deployment,) = (item for item in installed if item["kind"] == "Deployment")
    assert [volume for volume in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in volume] == []


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("job", {"nodes": 0}, "should be greater than or equal to 1"),
        ("job", {"env": [{"name": "RANK", "value": "0"}]}, "the operator sets this variable for every rank"),
        ("job", {"command": ["python", "train.py"]}, "exactly one of trainer"),
        ("job", {"gpusPerNode": 4, "processesPerNode": 2}, "processesPerNode must equal gpusPerNode"),
        ("j" * 53, {}, "longer than 52 characters"),
    ],
    ids=["range", "contradiction with the operator", "contradiction in itself", "GPUs", "name"],
)
def test_pain_17_a_bad_job_is_refused_in_words_while_no_operator_runs(
    ddpjob_crd, namespace, name, change, words
) -> None:
    with pytest.raises(KubectlError) as refused:
        create(ddpjob_crd, namespace, {**GOOD, **change}, name)

    assert words in str(refused.value)
    assert "created" in create(ddpjob_crd, namespace, GOOD), "a good one is taken, to be run once there is an operator"


def test_pain_18_the_chart_needs_no_other_chart_no_values_and_no_order() -> None:
    assert "dependencies" not in yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert not (CHART / "charts").exists()
    assert not (CHART / "crds").exists(), "helm never upgrades what lies there"
    installed = objects()

    assert sum(item["kind"] == "CustomResourceDefinition" for item in installed) == 1
    assert {hook(item) for item in installed} == {None, "test"}
    assert names.API_VERSION not in {item["apiVersion"] for item in installed}, (
        "no object of a type that is not there yet"
    )
    referred = json.dumps([item for item in installed if item["kind"] == "Deployment"])
    assert not [kind for kind in ("configMap", "secretKeyRef", "secretName", "configMapRef") if kind in referred]
