"""Generated files are up to date: the chart's CRD, and the plain manifests."""

import os
import subprocess

import yaml

from ddpjob_operator.api import names
from support.chart_render import CHART, REPOSITORY, find, render
from testbed import tools


def test_the_charts_crd_is_the_one_of_the_manifests():
    plain = REPOSITORY / "manifests" / "crd" / "ddpjob.yaml"
    assert (CHART / "files" / "crd" / "ddpjob.yaml").read_text() == plain.read_text()


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


def test_the_plain_manifests_are_made_from_the_chart():
    folder = REPOSITORY / "manifests" / "operator"
    made = subprocess.run(
        [folder / "render.sh"],
        env={**os.environ, "HELM": str(tools.path("helm"))},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert (folder / "operator.yaml").read_text() == made, (
        "run: manifests/operator/render.sh > manifests/operator/operator.yaml"
    )


def test_the_plain_manifests_have_nothing_of_helm():
    documents = list(yaml.safe_load_all((REPOSITORY / "manifests" / "operator" / "operator.yaml").read_text()))
    assert "helm" not in repr(documents).lower()
    assert sorted(item["kind"] for item in documents) == [
        *["ClusterRole"] * 4,
        *["ClusterRoleBinding"] * 2,
        "Deployment",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ]
