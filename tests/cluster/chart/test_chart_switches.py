"""Each value does what README.md says of it, and nothing else."""

import pytest

from chart_render import (
    CHART,
    deployment,
    find,
    helm,
    identity,
    installed,
    of_test,
    operator_arguments,
    operator_pod,
    render,
)
from testbed.helm import HelmError

DIGEST = "sha256:" + "0123456789abcdef" * 4


def test_lint_is_clean():
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


def test_the_default_is_a_cluster_wide_operator():
    assert sorted(identity(item) for item in installed(render())) == [
        ("ClusterRole", None, "ddpjob-operator"),
        ("ClusterRole", None, "ddpjob-operator-edit"),
        ("ClusterRole", None, "ddpjob-operator-nodes"),
        ("ClusterRole", None, "ddpjob-operator-view"),
        ("ClusterRoleBinding", None, "ddpjob-operator"),
        ("ClusterRoleBinding", None, "ddpjob-operator-nodes"),
        ("CustomResourceDefinition", None, "ddpjobs.ddpjob.dev"),
        ("Deployment", "ddpjob-system", "ddpjob-operator"),
        ("Role", "ddpjob-system", "ddpjob-operator-lease"),
        ("RoleBinding", "ddpjob-system", "ddpjob-operator-lease"),
        ("ServiceAccount", "ddpjob-system", "ddpjob-operator"),
    ]


def test_the_default_arguments():
    assert operator_arguments() == [
        "--trainer-image=localhost/ddpjob/trainer:0.1.0",
        "--lease=ddpjob-system/ddpjob-operator",
        "--identity=ddpjob-operator-0",
        "--health-port=8080",
        "--workers=32",
        "--log-level=INFO",
        "--log-format=plain",
        "--progress-interval-seconds=10",
    ]


def test_the_new_operator_is_ready_before_the_old_one_goes():
    spec = deployment()["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "RollingUpdate")
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_an_operator_is_known_by_its_pod_s_name():
    (container,) = operator_pod()["containers"]
    assert container["env"] == [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]


def test_one_replica_has_no_budget_that_would_block_a_drain():
    assert "PodDisruptionBudget" not in {item["kind"] for item in render()}
    assert "topologySpreadConstraints" not in operator_pod()


def test_several_replicas_are_spread_and_drained_one_by_one():
    values = {"replicas": 3, "affinity": {"nodeAffinity": {}}}
    objects = render(values)
    pod = find(objects, "Deployment")["spec"]["template"]
    assert find(objects, "Deployment")["spec"]["replicas"] == 3
    assert find(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    for selector in (spread["labelSelector"], find(objects, "PodDisruptionBudget")["spec"]["selector"]):
        assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["affinity"] == {"nodeAffinity": {}}


def test_probes_ask_the_health_port():
    (container,) = operator_pod()["containers"]
    assert container["ports"] == [{"name": "health", "containerPort": 8080}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}


def test_only_pods_that_speak_with_the_api_server_have_a_token():
    objects = render()
    assert {item["automountServiceAccountToken"] for item in objects if item["kind"] == "ServiceAccount"} == {False}
    assert operator_pod()["automountServiceAccountToken"]


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        (
            {"trainer": {"image": {"repository": "example.org:5000/team/trainer"}}},
            "--trainer-image=example.org:5000/team/trainer:0.1.0",
        ),
        ({"trainer": {"image": {"tag": "2"}}}, "--trainer-image=localhost/ddpjob/trainer:2"),
        ({"trainer": {"image": {"tag": "2", "digest": DIGEST}}}, f"--trainer-image=localhost/ddpjob/trainer@{DIGEST}"),
        ({"imagePrefix": "example.org:5000/ml"}, "--trainer-image=example.org:5000/ml/trainer:0.1.0"),
        ({"watch": {"namespaces": ["team-a"]}}, "--namespace=team-a"),
        ({"operator": {"workers": 3}}, "--workers=3"),
        ({"operator": {"logLevel": "debug"}}, "--log-level=DEBUG"),
        ({"operator": {"logFormat": "json"}}, "--log-format=json"),
        ({"operator": {"progressIntervalSeconds": 2.5}}, "--progress-interval-seconds=2.5"),
    ],
)
def test_values_that_become_arguments(values, argument):
    changed = set(operator_arguments(values)) - set(operator_arguments())
    assert changed == {argument}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"image": {"repository": "example.org/operator"}}, "example.org/operator:0.1.0"),
        ({"image": {"tag": "2"}}, "localhost/ddpjob/operator:2"),
        ({"image": {"tag": "2", "digest": DIGEST}}, f"localhost/ddpjob/operator@{DIGEST}"),
        ({"imagePrefix": "example.org"}, "example.org/operator:0.1.0"),
    ],
)
def test_the_operators_image(values, expected):
    objects = render(values)
    test_pod = find(of_test(objects), "Pod")["spec"]
    assert operator_pod(values)["containers"][0]["image"] == expected
    assert test_pod["containers"][0]["image"] == expected


TOLERATIONS = [{"key": "dedicated", "operator": "Equal", "value": "system", "effect": "NoSchedule"}]
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
]}}}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "also_test_pod"),
    [
        ({"imagePullSecrets": [{"name": "registry"}]}, True),
        ({"nodeSelector": {"kubernetes.io/os": "linux"}}, True),
        ({"tolerations": TOLERATIONS}, True),
        ({"affinity": AFFINITY}, False),
        ({"priorityClassName": "system-cluster-critical"}, False),
    ],
)
def test_values_that_become_fields_of_the_pod(values, also_test_pod):
    ((field, value),) = values.items()
    assert field not in operator_pod()
    assert operator_pod(values)[field] == value
    assert (find(of_test(render(values)), "Pod")["spec"].get(field) == value) is also_test_pod


def test_security_contexts_and_resources_are_merged_with_the_defaults():
    values = {
        "podSecurityContext": {"runAsUser": 1000},
        "securityContext": {"privileged": False},
        "resources": {"limits": {"memory": "1Gi"}},
        "image": {"pullPolicy": "Never"},
    }
    for pod in (operator_pod(values), find(of_test(render(values)), "Pod")["spec"]):
        (container,) = pod["containers"]
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        }
        assert container["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
        assert container["imagePullPolicy"] == "Never"


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"crds": {"enabled": False}}, {"CustomResourceDefinition ddpjobs.ddpjob.dev"}),
        ({"rbac": {"aggregate": False}}, {"ClusterRole ddpjob-operator-edit", "ClusterRole ddpjob-operator-view"}),
        ({"rbac": {"nodes": False}}, {"ClusterRole ddpjob-operator-nodes", "ClusterRoleBinding ddpjob-operator-nodes"}),
        (
            {"rbac": {"create": False}},
            {
                "ClusterRole ddpjob-operator",
                "ClusterRole ddpjob-operator-edit",
                "ClusterRole ddpjob-operator-nodes",
                "ClusterRole ddpjob-operator-view",
                "ClusterRoleBinding ddpjob-operator",
                "ClusterRoleBinding ddpjob-operator-nodes",
                "Role ddpjob-operator-lease",
                "RoleBinding ddpjob-operator-lease",
            },
        ),
        ({"serviceAccount": {"create": False}}, {"ServiceAccount ddpjob-operator"}),
    ],
)
def test_switches_that_leave_objects_out(values, gone):
    def names(objects):
        return {f"{item['kind']} {item['metadata']['name']}" for item in installed(objects)}

    assert names(render()) - names(render(values)) == gone
    assert names(render(values)) <= names(render())


def test_the_crd_is_kept_unless_told_otherwise():
    def policy(values):
        annotations = find(render(values), "CustomResourceDefinition")["metadata"].get("annotations", {})
        return annotations.get("helm.sh/resource-policy")

    assert policy({}) == "keep"
    assert policy({"crds": {"keep": False}}) is None


@pytest.mark.parametrize(
    ("values", "account"),
    [
        ({}, "ddpjob-operator"),
        ({"serviceAccount": {"name": "trusted"}}, "trusted"),
        ({"serviceAccount": {"create": False}}, "default"),
        ({"serviceAccount": {"create": False, "name": "mine"}}, "mine"),
    ],
)
@pytest.mark.parametrize("namespaces", [[], ["team-a", "team-b"]])
def test_bindings_name_the_account_of_the_operators_pod(values, account, namespaces):
    objects = installed(render({**values, "watch": {"namespaces": namespaces}}))
    pod = find(objects, "Deployment")["spec"]["template"]["spec"]
    subjects = [item["subjects"] for item in objects if item["kind"].endswith("Binding")]
    assert pod["serviceAccountName"] == account
    assert len(subjects) == (3 if not namespaces else 4)
    assert all(s == [{"kind": "ServiceAccount", "name": account, "namespace": "ddpjob-system"}] for s in subjects)


def test_annotations_of_service_account_and_pod():
    objects = render({"serviceAccount": {"annotations": {"a": "1"}}, "podAnnotations": {"b": "2"}})
    assert find(installed(objects), "ServiceAccount")["metadata"]["annotations"] == {"a": "1"}
    assert find(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"] == {"b": "2"}


def test_common_labels_and_annotations_are_everywhere_but_in_the_selector():
    values = {"commonLabels": {"team": "research"}, "commonAnnotations": {"contact": "research"}}
    objects = render(values)
    template = find(objects, "Deployment")["spec"]["template"]["metadata"]
    assert {item["metadata"]["labels"]["team"] for item in objects} == {"research"}
    assert {item["metadata"]["annotations"]["contact"] for item in objects} == {"research"}
    assert template["labels"]["team"] == "research"
    assert "team" not in find(objects, "Deployment")["spec"]["selector"]["matchLabels"]


def test_common_labels_cannot_take_the_selectors_place():
    metadata = find(render({"commonLabels": {"app.kubernetes.io/name": "x"}}), "Deployment")["spec"]["template"][
        "metadata"
    ]
    assert metadata["labels"]["app.kubernetes.io/name"] == "ddpjob-operator"


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


def test_names_of_digits_stay_strings():
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
def test_kubernetes_versions(version):
    assert render({}, "--kube-version", version)


def test_an_old_kubernetes_is_refused():
    with pytest.raises(HelmError, match=r"incompatible with Kubernetes v1\.29\.9"):
        render({}, "--kube-version", "1.29.9")
