"""Sidecars that run on after the program do not keep a job alive."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase
from ddpjob_operator.core.actions import LowerPodDeadline
from ddpjob_operator.core.model import NO_LOG, Observed, Pod
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import pod_of
from ddpjob_operator.core.render.pods import create_pod
from support.builders import NOW, program, reconciled, running

RUNS = {"running": {"startedAt": "2026-11-21T10:00:00Z"}}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-21T10:09:00Z"}}


def reported(seen: Observed, rank: int, *, injected: bool) -> Pod:
    """A pod whose program is done while its sidecar runs, as a kubelet reports it."""
    body = dict(create_pod(seen.job, seen.job.spec, "users/train:1", rank).body)
    own = [container["name"] for container in body["spec"]["containers"]]
    statuses = [{"name": name, "state": DONE if name == "trainer" else RUNS} for name in own]
    containers = body["spec"]["containers"]
    if injected:  # service meshes put their proxy in front
        containers = [{"name": "istio-proxy"}, *containers]
        statuses = [{"name": "istio-proxy", "state": RUNS}, *statuses]
    return pod_of(
        {
            **body,
            "metadata": {**body["metadata"], "uid": f"pod-uid-1-{rank}"},
            "spec": {**body["spec"], "nodeName": f"node-{rank}", "containers": containers},
            "status": {"phase": "Running", "containerStatuses": statuses},
        }
    )


@pytest.mark.parametrize("injected", [False, True], ids=["of the template", "of a mesh"])
def test_a_living_sidecar_keeps_no_job_alive_and_is_stopped_by_its_kubelet(injected: bool) -> None:
    template = {} if injected else {"spec": {"containers": [{"name": "log-shipper", "image": "l:1"}]}}
    seen = running(program(nodes=2, template=template))
    pods = tuple(reported(seen, rank, injected=injected) for rank in range(2))
    seen = reconciled(replace(seen, pods=pods, logs={p.uid: NO_LOG for p in pods}))
    assert seen.job.status.phase == Phase.SUCCEEDED
    assert plan(seen, NOW).actions == tuple(LowerPodDeadline(name=p.name, uid=p.uid) for p in pods)
