"""Pods of each `securityProfile` pass the Pod Security admission of the level that the profile is named for."""

import json
from typing import Any

import pytest

import testbed
from builders import job, program
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.render.pods import create_pod
from testbed.kubectl import KubectlError

IPC_LOCK = {
    "spec": {"containers": [{"name": "trainer", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}]},
}


def admit(cluster: testbed.ControlPlane, namespace: str, level: str, of: Job) -> str:
    """The API server's answer to the first pod of the job, in a namespace that enforces this level."""
    cluster.kubectl("label", "namespace", namespace, f"pod-security.kubernetes.io/enforce={level}")
    assert of.spec is not None, "builders make valid jobs"
    pod: dict[str, Any] = {**create_pod(of, of.spec, "image:1", 0).body}
    pod["metadata"] = {**pod["metadata"], "namespace": namespace}
    return cluster.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(pod))


@pytest.mark.parametrize(
    ("level", "of"),
    [
        pytest.param("restricted", job(), id="restricted, the built-in trainer"),
        pytest.param("restricted", program(), id="restricted, a command"),
        pytest.param("baseline", program(securityProfile="baseline"), id="baseline"),
        pytest.param("privileged", program(securityProfile="baseline", template=IPC_LOCK), id="IPC_LOCK"),
    ],
)
def test_a_pod_is_admitted_at_its_own_level(
    control_plane: testbed.ControlPlane, namespace: str, level: str, of: Job
) -> None:
    assert "created" in admit(control_plane, namespace, level, of)


@pytest.mark.parametrize(
    ("level", "of", "violation"),
    [
        pytest.param("restricted", program(securityProfile="baseline"), "runAsNonRoot", id="baseline"),
        pytest.param("baseline", program(template=IPC_LOCK), "IPC_LOCK", id="IPC_LOCK"),
    ],
)
def test_a_pod_is_refused_at_the_level_above(
    control_plane: testbed.ControlPlane, namespace: str, level: str, of: Job, violation: str
) -> None:
    with pytest.raises(KubectlError, match=f'violates PodSecurity "{level}.*{violation}'):
        admit(control_plane, namespace, level, of)
