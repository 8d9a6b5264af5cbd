"""Each value does what README.md says of it, and nothing else."""

import pytest

from chart_render import (
    CHART,
    find,
    helm,
    identity,
    render,
)
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


def test_the_pod_monitor_needs_its_api():
    values = {"metrics": {"podMonitor": True}}
    with pytest.raises(
        HelmError, match=r"does not serve monitoring\.coreos\.com/v1 PodMonitor: install the Prometheus operator"
    ):
        render(values)

    objects = render(values, "--api-versions", "monitoring.coreos.com/v1/PodMonitor")
    spec = find(objects, "PodMonitor")["spec"]
    pod = find(objects, "Deployment")["spec"]["template"]
    assert spec["podMetricsEndpoints"] == [{"port": "health", "path": "/metrics"}]
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("version", ["1.30.0", "1.36.3", "1.33.1-gke.2"])
def test_supported_kubernetes_versions_are_accepted(version):
    assert render({}, "--kube-version", version)


def test_an_old_kubernetes_is_refused():
    with pytest.raises(HelmError, match=r"incompatible with Kubernetes v1\.29\.9"):
        render({}, "--kube-version", "1.29.9")
