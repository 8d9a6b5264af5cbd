"""Each value does what README.md says of it, and nothing else."""

import json

import pytest
import yaml

from support.chart_render import CHART, RELEASE, find, helm, identity, render
from testbed.helm import HelmError


def test_lint_is_clean():
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("ddpjob-operator", {}, "ddpjob-operator"),
        ("training", {}, "training-ddpjob-operator"),
        ("training", {"nameOverride": "ddp"}, "training-ddp"),
        ("training", {"fullnameOverride": "ddp"}, "ddp"),
        ("r" * 53, {}, "r" * 52),
    ],
)
def test_names_follow_the_release(release, values, name):
    assert find(render(values, release=release), "Deployment")["metadata"]["name"] == name


def test_names_of_digits_are_rendered_as_strings():
    objects = render({"watch": {"namespaces": ["123"]}, "fullnameOverride": "456"}, namespace="789")
    assert {type(part) for item in objects for part in identity(item)} <= {str, type(None)}
    assert find(objects, "Role", "456")["metadata"]["namespace"] == "123"


def test_alerts_and_dashboard_are_rendered_without_a_cluster_as_they_are_tested():
    values = {"metrics": {"prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}}
    objects = render(values)
    assert find(objects, "PrometheusRule")["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    dashboard = find(objects, "ConfigMap", f"{RELEASE}-dashboard")["data"]["ddpjob.json"]
    assert json.loads(dashboard) == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_the_runbook_of_alerts_may_be_elsewhere():
    values = {"metrics": {"prometheusRule": {"enabled": True, "runbookUrl": "https://docs.example.com/alerts/"}}}
    (group,) = find(render(values), "PrometheusRule")["spec"]["groups"]
    assert {rule["annotations"]["runbook_url"] for rule in group["rules"]} == {
        f"https://docs.example.com/alerts/#{rule['alert'].lower()}" for rule in group["rules"]
    }


@pytest.mark.parametrize(
    ("provider", "served", "groups"),
    [
        ("auto", (), set()),
        ("auto", ("scheduling.k8s.io/v1alpha2",), {"scheduling.k8s.io"}),
        ("auto", ("scheduling.k8s.io/v1beta1/PodGroup",), {"scheduling.k8s.io"}),
        ("auto", ("kueue.x-k8s.io/v1beta2", "scheduling.k8s.io/v1alpha2"), {"kueue.x-k8s.io", "scheduling.k8s.io"}),
        ("native", (), {"scheduling.k8s.io"}),
        ("auto", ("scheduling.volcano.sh/v1beta1",), {"scheduling.volcano.sh"}),
        ("kueue", ("scheduling.k8s.io/v1alpha2",), {"kueue.x-k8s.io"}),
        ("volcano", (), {"scheduling.volcano.sh"}),
        ("coscheduling", ("scheduling.k8s.io/v1alpha2",), {"scheduling.x-k8s.io"}),
        ("none", ("kueue.x-k8s.io/v1beta2", "scheduling.k8s.io/v1alpha2"), set()),
    ],
)
def test_only_a_scheduling_provider_in_use_has_rights(provider, served, groups):
    options = [part for version in served for part in ("--api-versions", version)]
    objects = render({"scheduling": {"provider": provider}}, *options)
    rules = find(objects, "ClusterRole", RELEASE)["rules"]
    given = {group for rule in rules for group in rule["apiGroups"]}
    assert given & {"kueue.x-k8s.io", "scheduling.k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io"} == groups


def test_monitors_select_the_operators_pods_and_port():
    objects = render({"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}})
    pod, service = find(objects, "Deployment")["spec"]["template"], find(objects, "Service")
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert find(objects, "PodMonitor")["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert (
        find(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
        <= service["metadata"]["labels"].items()
    )
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = find(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in ports
    assert [(port["name"], port["targetPort"]) for port in service["spec"]["ports"]] == [("health", "health")]


@pytest.mark.parametrize("version", ["1.34.0", "1.37.2", "1.34.1-gke.2"])
def test_supported_kubernetes_versions_are_accepted(version):
    assert render({}, "--kube-version", version)


def test_an_old_kubernetes_is_refused():
    with pytest.raises(HelmError, match=r"incompatible with Kubernetes v1\.33\.9"):
        render({}, "--kube-version", "1.33.9")
