"""Logs of the ranks of a job: their lines, how they are followed while the API server fails, and what is said of those that do not exist."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from ddpjob.client import logs
from ddpjob.client.errors import ForbiddenError, NotFoundError
from ddpjob.client.jobs import Pod, read_job, read_pod
from ddpjob.client.logs import LogLine, order, read_line
from ddpjob_operator.api import names
from ddpjob_operator.transport.client import Event
from ddpjob_operator.transport.errors import ApiError, GoneError, RejectedError, ThrottledError
from ddpjob_operator.transport.resources import DDPJOBS, PODS
from support.fake_server import FakeServer, Request

EXPIRED = GoneError("list", "expired", status=410)
FORBIDDEN = RejectedError("log", 'cannot get resource "pods/log"', status=403)


def job_body(uid: str, attempt: int, phase: str) -> dict[str, Any]:
    ends = [{"type": "Succeeded", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    return {
        "metadata": {"namespace": "ns", "name": "j", "uid": uid, "resourceVersion": "5"},
        "spec": {"nodes": 2, "command": ["x"]},
        "status": {"phase": phase, "attempt": attempt, "conditions": ends if phase == "Succeeded" else []},
    }


def pod_body(rank: int, attempt: int = 1) -> dict[str, Any]:
    labels = {
        names.LABEL_JOB: "j",
        names.LABEL_JOB_UID: "uid-1",
        names.LABEL_ATTEMPT: str(attempt),
        names.LABEL_RANK: str(rank),
    }
    return {
        "metadata": {"namespace": "ns", "name": f"j-{attempt}-{rank}", "labels": labels},
        "spec": {"containers": [{"name": names.MAIN_CONTAINER}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": names.MAIN_CONTAINER, "state": {"running": {}}}],
        },
    }


def server(*jobs: dict[str, Any] | ApiError, errors_of_pods: Sequence[ApiError | None] = ()) -> FakeServer:
    """The reads of the job are answered in turn, the last one again and again; its watches report a change at once."""
    made, answers, errors = FakeServer(), itertools.chain(jobs, itertools.repeat(jobs[-1])), iter(errors_of_pods)
    made.lines = ["first"]
    made.put(PODS, pod_body(0))
    made.watches[DDPJOBS.plural] = itertools.repeat(itertools.repeat(Event(type="MODIFIED", body={})))

    def answer(request: Request) -> ApiError | None:
        if request.verb == "list":
            return next(errors, None)
        if request.verb == "get":
            job = next(answers)
            if isinstance(job, ApiError):
                return job
            made.put(DDPJOBS, job)
        return None

    made.refuse = answer
    return made


def followed(server: Any) -> AsyncGenerator[logs.LogLine, None]:
    return logs.followed_log(server, "ns", "j", logs.Selection(), lambda _: None)


async def texts(lines: AsyncGenerator[logs.LogLine, None]) -> list[str]:
    async with asyncio.timeout(30), aclosing(lines):
        return [line.text async for line in lines]


RUNNING = job_body("uid-1", 1, "Running")
DONE = job_body("uid-1", 1, "Succeeded")


async def test_a_reader_who_stops_early_does_not_wait_for_those_who_print_more_than_it_reads(monkeypatch) -> None:
    """`ddpjob logs -f | head` of a job that has printed more than the queue holds."""
    monkeypatch.setattr(logs, "_QUEUED_LINES", 5)
    printing = server(RUNNING)
    printing.lines = map(str, itertools.count())
    lines = followed(printing)
    assert (await anext(lines)).text == "0"
    for _ in range(100):  # the queue fills
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await lines.aclose()


async def test_a_job_that_has_replaced_the_followed_one_is_not_followed_by_its_name() -> None:
    """Its attempts begin with 1 again, and its pods have the names of those that were read."""
    replaced = server(job_body("uid-1", 3, "Running"), job_body("uid-2", 1, "Running"))
    with pytest.raises(NotFoundError, match="was deleted, and another one of this name was created"):
        await texts(followed(replaced))


PASSING = {
    "the job is throttled": lambda: server(RUNNING, ThrottledError("get", "too many requests", status=429), DONE),
    "a list of pods took too long": lambda: server(RUNNING, RUNNING, DONE, errors_of_pods=[None, EXPIRED]),
}


@pytest.mark.parametrize("which", PASSING)
async def test_a_log_is_followed_on_after_an_error_that_passes(which, monkeypatch) -> None:
    monkeypatch.setattr(logs, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr("ddpjob.client.outage.RETRY_SECONDS", 0.01)
    assert "first" in await texts(followed(PASSING[which]()))


class TwoStreams(FakeServer):
    """A log that is followed until the job has ended, and then read once more from the time of the last line on."""

    def __init__(self, followed: Sequence[str], rest: Sequence[str]) -> None:
        super().__init__()
        self.followed, self.rest = followed, rest

    async def pod_log_lines(self, namespace: str, pod: str, *, follow: bool, **_: Any) -> AsyncGenerator[str, None]:
        self.requests.append(Request("log", "pods", namespace, pod))
        for line in self.followed if follow else self.rest:
            yield line
        if follow:
            await asyncio.Event().wait()


async def test_a_log_that_is_read_again_goes_on_after_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "RETRY_SECONDS", 0.01)
    a, b, c, d = (f"2026-01-02T03:04:0{5 + (text != 'a')}Z {text}" for text in "abcd")
    api = TwoStreams([a, b, c], [b, c, d, "2026-01-02T03:04:04Z the clock of the node was put back"])
    api.put(PODS, pod_body(0))
    api.watches[DDPJOBS.plural] = itertools.repeat(itertools.repeat(Event(type="MODIFIED", body={})))

    def show_the_job(_: Request) -> None:
        api.put(DDPJOBS, DONE if api.num("log") else RUNNING)

    api.refuse = show_the_job
    assert await texts(followed(api)) == ["a", "b", "c", "d", "the clock of the node was put back"]


async def test_a_log_that_nobody_may_read_is_an_error_while_another_one_is_still_read() -> None:
    pods = [pod for rank in range(2) if (pod := read_pod(pod_body(rank))) is not None]
    api: Any = FakeServer(
        refuse=lambda request: FORBIDDEN if request.name == "j-1-0" else None,
        hang=lambda request: request.name == "j-1-1",
    )
    with pytest.raises(ForbiddenError):
        await texts(logs.finished_log(api, "ns", pods, logs.Selection(), lambda _: None))


POD = Pod(
    name="j-1-0",
    attempt=1,
    rank=0,
    node="n",
    state="Running",
    restarts=0,
    exit_code=None,
    message="",
    started=True,
    finished=False,
    body={},
)


def line(time: str, text: str = "") -> LogLine:
    return read_line(POD, f"{time} {text}")


def test_a_line_has_its_time_and_no_control_characters() -> None:
    read = line("2026-01-02T03:04:05.1Z", "\x1b[31mred\x1b[0m\rloss 1")
    assert (read.time, read.text) == ("2026-01-02T03:04:05.1Z", "loss 1")


def test_a_line_without_a_time_is_kept() -> None:
    assert read_line(POD, "no time here").text == "no time here"


def test_times_are_ordered_by_all_digits_and_by_zone() -> None:
    times = ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05.12Z", "2026-01-02T05:04:06+02:00"]
    assert [order(earlier) < order(later) for earlier, later in pairwise(times)] == [True] * 3


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (logs.Selection(), "no pods of attempt 2 exist; the job is Running: all pods run"),
        (logs.Selection(attempt=1), "no pods of attempt 1 exist;"),
        (logs.Selection(attempt=7), "attempt 7 has not started, and the newest one is 2;"),
        (logs.Selection(ranks=frozenset({9, 8})), "no pods of attempt 2 with rank 8, 9 exist;"),
    ],
)
def test_what_does_not_exist_is_named(selection: logs.Selection, text: str) -> None:
    body = {
        "apiVersion": "ddpjob.dev/v1beta1",
        "kind": "DDPJob",
        "metadata": {"name": "j", "namespace": "team", "uid": "u"},
        "spec": {"command": ["x"]},
        "status": {"phase": "Running", "attempt": 2, "message": "all pods run"},
    }
    notes: list[str] = []

    logs.note_missing(read_job(body), [], selection, notes.append)

    assert len(notes) == 1
    assert notes[0].startswith(text)
