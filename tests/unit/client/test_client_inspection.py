"""What the client makes of the answers of a job's pods, and of pods that do not answer."""

import json
from dataclasses import asdict
from typing import Any, cast

import pytest

from ddpjob.client import ConflictError, ForbiddenError, inspection
from ddpjob.client.jobs import read_job, read_pod
from ddpjob_operator.api.names import LABEL_ATTEMPT, LABEL_PLACEHOLDER, LABEL_RANK, contract
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import RejectedError, UnavailableError
from ddpjob_operator.transport.execution import Execution

JOB = read_job(
    {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": "j", "namespace": "a"}, "spec": {}}
)


def pod(rank: int, **state: object) -> Any:
    metadata = {"name": f"j-1-{rank}", "labels": {LABEL_ATTEMPT: "1", LABEL_RANK: str(rank)}}
    status = {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": state or {"running": {}}}]}
    return read_pod({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})


def test_a_pod_that_only_holds_a_place_is_no_rank() -> None:
    labels = {LABEL_ATTEMPT: "2", LABEL_RANK: "3"}
    assert read_pod({"metadata": {"name": "j-2-3", "labels": labels}}) is not None
    place = {**labels, LABEL_PLACEHOLDER: "true"}
    assert read_pod({"metadata": {"name": "j-2-3-place", "labels": place}}) is None


def test_of_a_traceback_the_message_of_a_pod_is_the_exception() -> None:
    traceback = 'Traceback (most recent call last):\n  File "bad.py", line 30, in <module>\nValueError: boom\n'
    assert pod(0, terminated={"exitCode": 1, "message": traceback}).message == "ValueError: boom"
    assert pod(0, terminated={"exitCode": 1, "message": "rank 1\nno space left"}).message == "rank 1: no space left"


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ({}, "data"),
        ({"phase": "\x1b]52;c;cHduZWQ=\x07\x1b[2J\u202eX" + "y" * 99}, "X" + "y" * 31),
        *(({name: 10**400}, None) for name in ("rank", "step", "memory_bytes")),
        *(({"seconds_in_phase": value}, None) for value in (1e308, float("nan"))),
        ({"seconds": {"data": -1e300}}, None),
    ],
)
def test_what_an_image_says_of_a_rank_is_visible_and_bounded(said: dict[str, Any], phase: str | None) -> None:
    fields = {"rank": 0, "step": 1, "phase": "data", "seconds_in_phase": 1.0, "num_samples": 1, "memory_bytes": 1}
    line = json.dumps({"rank": 0, "answer": json.dumps({**fields, **said}), "error": ""})
    found = inspection._read_state(inspection._read(pod(0), line))
    assert (found.state.phase if found.state else None) == phase
    assert bool(found.error) is (phase is None)


class Pods:
    """Answers of pods, by name."""

    def __init__(self, **answers: Execution | Exception) -> None:
        self._answers = {name.replace("_", "-"): answer for name, answer in answers.items()}

    async def execute(self, _namespace: str, pod: str, command: list[str], **_: object) -> Execution:
        assert command[:3] == ["python", "-m", "ddpjob_ranks.inspection"]
        answer = self._answers[pod]
        if isinstance(answer, Exception):
            raise answer
        return answer


def printed(*answers: contract.RankAnswer) -> Execution:
    return Execution(exit_code=0, output="".join(json.dumps(asdict(a)) + "\n" for a in answers), errors="")


async def test_stacks_come_by_rank_and_silent_pods_say_why() -> None:
    api = Pods(
        j_1_0=printed(
            contract.RankAnswer(rank=1, error="no answer in time"), contract.RankAnswer(rank=0, answer="a\n\x1b[1mb")
        ),
        j_1_1=Execution(exit_code=1, output="", errors="Traceback\npython: No module named ddpjob_ranks\n"),
        j_1_2=Execution(exit_code=None, output="", errors="exec: python: executable file not found in $PATH"),
        j_1_3=printed(),
        j_1_4=UnavailableError("exec", "connection refused"),
        j_1_5=Execution(exit_code=0, output="hello\n", errors=""),
    )
    found = await inspection.stacks(cast("Client", api), JOB, [pod(number) for number in range(6)])
    assert [(stacks.rank, stacks.text) for stacks in found if stacks.text] == [(0, "a\nb")]
    errors = {(stacks.rank, stacks.pod.rank): stacks.error for stacks in found if stacks.error}
    for key, text in {
        (1, 0): "no answer in time",
        (None, 1): "python -m ddpjob_ranks.inspection stacks failed in it: python: No module named ddpjob_ranks",
        (None, 2): "executable file not found",
        (None, 3): "uses neither the built-in trainer nor ddpjob.session",
        (None, 4): "connection refused",
        (None, 5): "it printed 'hello'",
    }.items():
        assert text in errors[key]


async def test_a_state_is_checked() -> None:
    state = contract.RankState(rank=0, step=3, phase="data", seconds_in_phase=0.5, num_samples=64, memory_bytes=1)
    later = json.dumps({**asdict(state), "field_of_a_later_release": 1})
    wrong = json.dumps({**asdict(state), "step": "many"})
    api = Pods(
        j_1_0=printed(contract.RankAnswer(rank=0, answer=later)),
        j_1_1=printed(contract.RankAnswer(rank=1, answer=wrong)),
    )
    good, bad = await inspection.progress(cast("Client", api), JOB, [pod(0), pod(1)])
    assert good.state == state
    assert bad.state is None
    assert "another release of ddpjob" in bad.error


async def test_without_the_right_or_a_running_pod_it_is_an_error() -> None:
    denied = RejectedError("exec", 'the user cannot create resource "pods/exec"', status=403)
    with pytest.raises(ForbiddenError, match="you may not create pods/exec in namespace a"):
        await inspection.stacks(cast("Client", Pods(j_1_0=denied)), JOB, [pod(0)])
    with pytest.raises(ConflictError, match="no pod of attempt 1 runs; the job is Pending"):
        await inspection.stacks(cast("Client", Pods()), JOB, [pod(0, terminated={"exitCode": 1})])
