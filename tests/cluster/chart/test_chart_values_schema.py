"""values.schema.json refuses what the chart does not know, and README.md lists what it knows."""

import json
import re
import shutil

import pytest
import yaml

from support.chart_render import CHART, helm, render
from testbed.helm import HelmError

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
#: Objects whose keys are the user's, or the Kubernetes API's.
OPEN = {
    "affinity",
    "commonAnnotations",
    "commonLabels",
    "metrics.dashboard.annotations",
    "metrics.dashboard.labels",
    "metrics.podMonitor.labels",
    "metrics.prometheusRule.labels",
    "metrics.serviceMonitor.labels",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
    "podSecurityContext",
    "resources.limits",
    "resources.requests",
    "securityContext",
    "serviceAccount.annotations",
}


def paths_of_objects(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict) and prefix + key not in OPEN:
            yield prefix + key
            yield from paths_of_objects(value, f"{prefix}{key}.")


def leaves(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def at(path, value):
    for key in reversed([part for part in path.split(".") if part]):
        value = {key: value}
    return value


@pytest.mark.parametrize("path", ["", *(path for path in paths_of_objects(DEFAULTS) if path != "global")])
def test_unknown_keys_are_refused_at_every_level(path):
    with pytest.raises(HelmError, match="additional properties 'unknwon' not allowed"):
        render(at(path, {"unknwon": 1}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("image.repository", "ddpjob/operator"),
        ("imagePrefix", ""),
        ("image.repository", "Upper/case"),
        ("image.tag", 1.1),
        ("image.digest", "sha256:short"),
        ("image.pullPolicy", "Sometimes"),
        ("imagePullSecrets", ["registry"]),
        ("trainer.image.pullPolicy", "Always"),
        ("watch.namespaces", ["Team_A"]),
        ("watch.namespaces", ["team-a", "team-a"]),
        ("crds.enabled", "yes"),
        ("rbac.create", "true"),
        ("admissionPolicy.enabled", "true"),
        ("admissionPolicy.serviceAccounts", ["Not_A_Name"]),
        ("serviceAccount.annotations", {"a": 1}),
        ("networkPolicy.jobs", "true"),
        ("networkPolicy.operator", True),
        ("networkPolicy.operator.apiServerPorts", []),
        ("networkPolicy.operator.apiServerPorts", ["https"]),
        ("networkPolicy.operator.apiServerCidrs", ["192.0.2.1"]),
        ("networkPolicy.operator.metricsFrom", {"podSelector": {}}),
        ("operator.logLevel", "INFO"),
        ("operator.logFormat", "xml"),
        ("operator.workers", 0),
        ("operator.progressIntervalSeconds", -1),
        ("metrics.podMonitor.enabled", "true"),
        ("metrics.serviceMonitor.interval", "30"),
        ("metrics.serviceMonitor.relabelings", ["drop"]),
        ("metrics.prometheusRule.runbookUrl", ""),
        ("metrics.jobGauges", 1001),
        ("global.imageRegistry", "registry.example.com/path"),
        ("extraEnv", [{"value": "a"}]),
        ("extraArgs", ["workers"]),
        ("topologySpreadConstraints", [{"maxSkew": 1}]),
        ("fullnameOverride", "Not_A_Name"),
        ("commonAnnotations", {"a": 1}),
        ("replicas", 0),
    ],
)
def test_wrong_values_are_refused_by_the_schema(path, value):
    with pytest.raises(HelmError, match="values don't meet the specifications of the schema"):
        render(at(path, value))


def test_the_schema_knows_exactly_the_keys_of_the_values_file():
    schema = json.loads((CHART / "values.schema.json").read_text())

    def known(part, prefix=""):
        for key, named in part.get("properties", {}).items():
            value = schema["$defs"][named["$ref"].rpartition("/")[2]] if "$ref" in named else named
            if value.get("type") == "object" and "properties" in value:
                yield from known(value, f"{prefix}{key}.")
            else:
                yield prefix + key

    of_file = {path for path, _ in leaves(DEFAULTS)}
    of_file = {next((open_ for open_ in OPEN if path.startswith(f"{open_}.")), path) for path in of_file}
    assert set(known(schema)) == of_file


def test_the_readme_explains_every_value():
    """`make generate` makes the table from the comments of the values file; each is the comment of its own key."""
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]*)` \| (.*) \|$", (CHART / "README.md").read_text(), re.MULTILINE)
    assert {key: yaml.safe_load(default) for key, default, _ in rows} == dict(leaves(DEFAULTS))
    unexplained = {key for key, _, meaning in rows if not meaning}
    assert all(
        key.startswith(("metrics.serviceMonitor.", "podSecurityContext.", "securityContext.", "resources."))
        for key in unexplained
    )


def test_the_chart_may_be_a_dependency_of_another(tmp_path):
    """Helm then hands it `global`."""
    parent = tmp_path / "platform"
    shutil.copytree(CHART, parent / "charts" / "ddpjob-operator")
    (parent / "Chart.yaml").write_text("apiVersion: v2\nname: platform\nversion: 1.0.0\n")
    (parent / "values.yaml").write_text("global: {region: north}\n")
    assert "--trainer-image=localhost/ddpjob/trainer:0.1.0" in helm("template", "platform", parent)
