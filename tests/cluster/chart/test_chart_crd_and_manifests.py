"""What the chart's CRD and the plain manifests hold."""

import yaml

from ddpjob_operator.api import names
from support import REPOSITORY
from support.chart_render import CHART, find, render


def test_the_rendered_crd_differs_in_metadata_alone():
    plain = yaml.safe_load((CHART / "files" / "crd" / "ddpjob.yaml").read_text())
    rendered = find(render(), "CustomResourceDefinition")
    assert rendered["metadata"].pop("labels")
    assert rendered["metadata"].pop("annotations") == {
        **plain["metadata"].pop("annotations", {}),
        "helm.sh/resource-policy": "keep",
    }
    assert rendered == plain


def test_the_chart_names_the_type_that_the_operator_serves():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (crd,) = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    assert (crd["kind"], crd["version"]) == (names.KIND, names.VERSION)
    assert crd["name"] == f"{names.PLURAL}.{names.GROUP}"


def test_the_plain_manifests_have_nothing_of_helm():
    documents = list(yaml.safe_load_all((REPOSITORY / "manifests" / "operator" / "operator.yaml").read_text()))
    assert "helm" not in repr(documents).lower()
    assert sorted(item["kind"] for item in documents) == [
        *["ClusterRole"] * 4,
        *["ClusterRoleBinding"] * 2,
        "Deployment",
        "NetworkPolicy",
        "Role",
        "RoleBinding",
        "ServiceAccount",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
