"""A program that has ended keeps its end, whatever the cluster does to its pod afterwards.

A drain, an eviction and a taint first patch the condition DisruptionTarget and then delete the pod, in two requests, also of a pod
whose program has ended.
"""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.core.model import Pod
from ddpjob_operator.core.plan import plan
from support.bodies import job_body, pod_body
from support.builders import NOW, crashed, program, reconciled, running, with_status
from support.engine import new_store

EVICTED = "EvictionByEvictionAPI"
ENDED = "2026-11-21T10:00:00Z"
SOON, LATE = "2026-11-21T10:00:30Z", "2026-11-21T10:02:00Z"


def version(number: int, *, ended: bool, disrupted: str = "", reason: str = "") -> dict[str, Any]:
    """The pod, whose program exited with 0 at ENDED or runs, disrupted at this time; `reason` is the kubelet's for the whole pod."""
    body = pod_body(number, state={"terminated": {"exitCode": 0, "finishedAt": ENDED}} if ended else {"running": {}})
    condition = {"type": "DisruptionTarget", "status": "True", "reason": EVICTED, "lastTransitionTime": disrupted}
    more = {"reason": reason, "phase": "Failed"} if reason else {}
    body["status"] |= {"conditions": [condition] if disrupted else []} | more
    return body


def record_after(*versions: dict[str, Any]) -> Pod:
    store = new_store()
    store.jobs.put(job_body(1, attempt=1))
    for body in versions:
        store.pods.put(body)
    (record,) = store.pods.records()
    return record


@pytest.mark.parametrize(
    ("versions", "succeeded"),
    [
        ([version(1, ended=True), version(2, ended=True, disrupted=SOON)], True),
        (
            [version(1, ended=True), version(2, ended=True, reason="Evicted")],
            True,
        ),  # a sidecar ran on, and its node was full
        (
            [version(1, ended=False), version(2, ended=False, disrupted=SOON), version(3, ended=True, disrupted=SOON)],
            False,
        ),
        ([version(1, ended=True, disrupted=LATE)], True),
        ([version(1, ended=True, disrupted=SOON)], False),
        ([version(1, ended=False), version(2, ended=True, disrupted=SOON)], False),
    ],
    ids=[
        "disrupted after its end",
        "evicted by its kubelet after its end",
        "disrupted before",
        "this process saw only both, with minutes between",
        "this process saw only both, within the margin of clocks",
        "both in one event",
    ],
)
def test_a_success_before_the_disruption_stays_a_success(versions: list[dict[str, Any]], succeeded: bool) -> None:
    assert record_after(*versions).succeeded == succeeded


def test_the_record_of_a_program_s_failure_is_not_rewritten_when_its_pod_is_evicted_later() -> None:
    """The user would lose the exception, and the restart would not count. A new process may see both at once."""
    seen = running(program(nodes=2))
    bad = crashed(seen.job, 1, ended_seen=NOW - 1, phase="Failed")
    failed = reconciled(replace(seen, pods=(seen.pods[0], bad)))
    drained = replace(with_status(failed, failed.job.status), pods=(replace(bad, disruption=f"{EVICTED}: evicting"),))
    status = plan(drained, NOW + 60).status
    assert status.failure == failed.job.status.failure
    assert (status.restarts.counted, status.restarts.infrastructure) == (1, 0)
