"""An init container that fails is named, and neither the program's exit codes nor the user's rules for them are about it."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.core.actions import Plan, ReadLog
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.model import Job
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import pod_of
from ddpjob_operator.core.render.pods import create_pod
from support.builders import NOW, job, observed, pending, program, reconciled

TEMPLATE = {"spec": {"initContainers": [{"name": "fetch", "image": "busybox"}]}}


def after_failed_init(of: Job, log: str | None = None, pod_reason: str = "", **terminated: Any) -> Plan:
    """The plan of a job of two nodes after the init container of rank 0 has ended in this way, with or without its log."""
    assert of.spec is not None
    body = dict(create_pod(of, of.spec, "image", 0).body)
    body["metadata"] = {**body["metadata"], "uid": "uid-0", "resourceVersion": "9"}
    body["spec"] = {**body["spec"], "nodeName": "n0"}
    ended = {"name": "fetch", "state": {"terminated": {"reason": "Error", **terminated}}}
    body["status"] = {"phase": "Failed", "reason": pod_reason, "initContainerStatuses": [ended]}
    placed = reconciled(observed(of, *(pending(of, rank, node=f"n{rank}") for rank in (0, 1))))
    logs = {} if log is None else {"uid-0": end_of_log(log)}
    return plan(replace(placed, pods=(pod_of(body), placed.pods[1]), logs=logs), NOW + 20)


@pytest.mark.parametrize("of", [job, program], ids=["built-in trainer", "own program"])
@pytest.mark.parametrize("code", [1, 2, 3, 69, 70, 71, 75, 137])
def test_every_exit_code_of_an_init_container_is_one_class_that_counts(of: Any, code: int) -> None:
    rules = [{"exitCodes": [3], "action": "Fail"}, {"exitCodes": [75], "action": "Ignore"}]
    made = after_failed_init(of(nodes=2, template=TEMPLATE, restart={"rules": rules}), "", exitCode=code)
    assert (made.status.phase, made.status.attempt) == ("Restarting", 2)
    failure = made.status.failure
    assert failure is not None
    assert (failure.reason, failure.exit_code, failure.checkpoint_step) == ("InitFailed", None, None)
    assert f"init container fetch ended with exit code {code}" in made.status.message
    assert (made.status.restarts.counted, made.status.restarts.infrastructure) == (1, 0)


def test_its_own_log_is_read_and_quoted() -> None:
    of = program(nodes=2, template=TEMPLATE)
    assert ReadLog(pod="job-1-0", uid="uid-0", container="fetch") in after_failed_init(of, exitCode=2).lookups
    made = after_failed_init(of, "downloading\nwget: bad address 'bucket'\n", exitCode=2)
    assert "init container fetch ended with exit code 2: wget: bad address 'bucket'" in made.status.message


@pytest.mark.parametrize(
    ("terminated", "said"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, "fetch was OOMKilled: raise its resources.limits.memory"),
        (
            {
                "exitCode": 128,
                "reason": "StartError",
                "message": 'failed: unable to start container process: exec: "tra": not found',
            },
            'fetch could not start: exec: "tra": not found',
        ),
    ],
)
def test_what_the_kubelet_says_of_it_is_quoted(terminated: dict[str, Any], said: str) -> None:
    assert said in after_failed_init(program(nodes=2, template=TEMPLATE), "", **terminated).status.message
