"""What `ddpjob doctor` concludes from what it has read."""

import copy
from typing import Any

import pytest

from ddpjob_cli.doctor import RIGHTS, Facts, State, findings
from ddpjob_operator.api.crd import custom_resource_definition


def operator_with(provider: str, policies: str = "auto") -> dict[str, Any]:
    container = {"image": "op:1", "args": [f"--scheduling-provider={provider}", f"--network-policies={policies}"]}
    return {
        "metadata": {"namespace": "ddpjob-system", "name": "op"},
        "spec": {"containers": [container]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


GOOD: dict[str, Any] = {
    "namespace": "team-a",
    "version": "v1.37.2",
    "crd_versions": ["v1beta1", "v1alpha1"],
    "schemas": {},
    "groups": {},
    "rights": dict.fromkeys(RIGHTS, True),
    "operator_pods": [operator_with("auto")],
    "may_make_policies": True,
    "nodes": [{"status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}}}, {"status": {}}],
    "claims": [{"metadata": {"name": "ckpt"}, "spec": {"accessModes": ["ReadWriteMany"]}}],
    "namespace_body": {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    "corefile": ".:53 {\n  cache 30 {\n    disable denial cluster.local\n  }\n}",
}


def served(*missing: str) -> dict[str, Any]:
    """The schemas of an API server whose DDPJob type lacks these fields of the status."""
    schema = copy.deepcopy(custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    for name in missing:
        del schema["properties"]["status"]["properties"][name]
    kind = {"group": "ddpjob.dev", "version": "v1beta1", "kind": "DDPJob"}
    return {"DDPJobList": {}, "DDPJob": {**schema, "x-kubernetes-group-version-kind": [kind]}}


WITH_GROUPS = {"groups": {"scheduling.k8s.io": ["v1", "v1beta1"]}}


def group(deleted: str | None) -> dict[str, Any]:
    return {"metadata": {"name": "job-1", **({"deletionTimestamp": deleted} if deleted else {})}}


def found(**changes: Any) -> dict[str, tuple[State, str]]:
    return {finding.subject: (finding.state, finding.text) for finding in findings(Facts(**{**GOOD, **changes}))}


def test_a_good_cluster_has_no_problem() -> None:
    assert {subject: state for subject, (state, _) in found().items() if state is not State.OK} == {
        "scheduling": State.NOTE
    }
    assert found()["GPUs"][1] == "nvidia.com/gpu: 8 on 1 node, at most 8 on one"
    assert found()["operator"][1] == "ddpjob-system/op (op:1)"


@pytest.mark.parametrize(
    ("changes", "subject", "state", "said"),
    [
        ({"crd_versions": []}, "DDPJob type", State.PROBLEM, "install the chart"),
        ({"crd_versions": ["v9"]}, "DDPJob type", State.PROBLEM, "serves v9"),
        ({"schemas": served()}, "DDPJob type", State.OK, "with all fields of this release"),
        ({"schemas": served("selector")}, "DDPJob type", State.PROBLEM, "has no status.selector. An operator"),
        ({"schemas": served("restarts")}, "DDPJob type", State.PROBLEM, "status.restarts.countedTimes"),
        ({"schemas": served("restarts")}, "DDPJob type", State.PROBLEM, " more. An operator"),
        ({"operator_pods": []}, "operator", State.PROBLEM, "no pod"),
        ({"operator_pods": None}, "operator", State.NOTE, "may not list pods"),
        ({"rights": {("create", "ddpjob.dev", "ddpjobs"): False}}, "rights", State.PROBLEM, "may not create ddpjobs"),
        ({"nodes": None}, "GPUs", State.NOTE, "may not list nodes"),
        ({"nodes": [{}]}, "GPUs", State.NOTE, "1 node, none of which shows GPUs"),
        ({"nodes": []}, "GPUs", State.PROBLEM, "the cluster has no nodes"),
        ({"groups": {"scheduling.k8s.io": ["v1"]}}, "scheduling", State.NOTE, "provider none"),
        ({"groups": {"scheduling.k8s.io": ["v1"]}}, "scheduling", State.NOTE, "feature gate GenericWorkload"),
        ({"groups": {"scheduling.k8s.io": ["v1", "v1alpha2"]}}, "scheduling", State.OK, "provider native"),
        ({"operator_pods": [operator_with("native")]}, "scheduling", State.PROBLEM, "does not serve scheduling.k8s.io/v1beta1"),
        ({"operator_pods": [operator_with("native")]}, "scheduling", State.PROBLEM, "feature gate GenericWorkload"),
        ({**WITH_GROUPS, "pod_groups": [group("2026-11-27T03:00:00Z")]}, "scheduling", State.NOTE, "GenericWorkload in the controller manager"),
        ({**WITH_GROUPS, "pod_groups": [group("2999-11-27T03:00:00Z"), group(None)]}, "scheduling", State.OK, "provider native"),
        ({"claims": []}, "checkpoints", State.NOTE, "no claim with ReadWriteMany"),
        ({"namespace_body": None}, "pod security", State.NOTE, "does not exist"),
        ({"may_make_policies": False}, "network policies", State.NOTE, "may not create them in namespace team-a"),
        ({"may_make_policies": None}, "network policies", State.NOTE, "you do not have the right to check"),
        ({"may_make_policies": None, "operator_pods": []}, "network policies", State.NOTE, "no operator that could"),
        ({"corefile": None}, "DNS", State.NOTE, "does not exist, or you may not read it"),
        ({"operator_pods": [operator_with("auto", "none")]}, "network policies", State.NOTE, "networkPolicy.jobs"),
        ({"corefile": "cache 30"}, "DNS", State.NOTE, "up to 30 s"),
        ({"corefile": "cache 30 {\n success 9984 30\n denial 9984 5\n}"}, "DNS", State.OK, "at most 5 s"),
        ({"version": "v1\x1b[31m"}, "API server", State.OK, "v1"),
    ],
)  # fmt: skip
def test_each_finding_says_what_to_do(changes: dict[str, Any], subject: str, state: State, said: str) -> None:
    assert found(**changes)[subject][0] is state
    assert said in found(**changes)[subject][1]
    assert "\x1b" not in found(**changes)[subject][1]
