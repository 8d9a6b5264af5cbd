"""Reading the logs of all ranks of a job, with a stand-in for the API server that fails, throttles or shows another job."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from ddpjob.client import logs
from ddpjob.client.errors import ForbiddenError, NotFoundError
from ddpjob.client.jobs import read_pod
from ddpjob_operator.api import names
from ddpjob_operator.transport.client import Event, Page
from ddpjob_operator.transport.errors import ApiError, GoneError, RejectedError, ThrottledError
from ddpjob_operator.transport.resources import DDPJOBS

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
    labels = {names.LABEL_JOB: "j", names.LABEL_ATTEMPT: str(attempt), names.LABEL_RANK: str(rank)}
    return {
        "metadata": {"namespace": "ns", "name": f"j-{attempt}-{rank}", "labels": labels},
        "spec": {"containers": [{"name": names.MAIN_CONTAINER}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": names.MAIN_CONTAINER, "state": {"running": {}}}],
        },
    }


@dataclass
class Server:
    """Answers the reads of the job in turn, the last one again and again; its watches report a change at once."""

    jobs: Sequence[dict[str, Any] | ApiError]
    lines: Iterator[str] = field(default_factory=lambda: iter(["first"]))
    errors_of_pods: Sequence[ApiError | None] = ()
    refused: frozenset[str] = frozenset()
    """Names of the pods whose logs nobody may read."""

    def __post_init__(self) -> None:
        self._answers = itertools.chain(self.jobs, itertools.repeat(self.jobs[-1]))
        self._errors = iter(self.errors_of_pods)

    async def get(self, *_: object) -> dict[str, Any]:
        answer = next(self._answers)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def pages(self, *_: object, **__: object) -> AsyncGenerator[Page, None]:
        if error := next(self._errors, None):
            raise error
        yield Page(items=[pod_body(0)], resource_version="5")

    async def watch(self, resource: object, *_: object, **__: object) -> AsyncGenerator[Event, None]:
        if resource != DDPJOBS:
            await asyncio.Event().wait()
        yield Event(type="MODIFIED", body={})

    async def pod_log_lines(self, _namespace: str, pod: str, *, follow: bool, **_: object) -> AsyncGenerator[str, None]:
        await asyncio.sleep(0)
        if pod in self.refused:
            raise FORBIDDEN
        for number, text in enumerate(self.lines):
            yield f"2026-01-01T00:00:{number // 10**6:02d}.{number % 10**6:06d}Z {text}"
            await asyncio.sleep(0)
        if follow or self.refused:
            await asyncio.Event().wait()


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
    lines = followed(Server([RUNNING], lines=map(str, itertools.count())))
    assert (await anext(lines)).text == "0"
    for _ in range(100):  # the queue fills
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await lines.aclose()


async def test_a_job_that_has_replaced_the_followed_one_is_not_followed_by_its_name() -> None:
    """Its attempts begin with 1 again, and its pods have the names of those that were read."""
    server = Server([job_body("uid-1", 3, "Running"), job_body("uid-2", 1, "Running")])
    with pytest.raises(NotFoundError, match="was deleted, and another one of this name was created"):
        await texts(followed(server))


PASSING = {
    "the job is throttled": Server([RUNNING, ThrottledError("get", "too many requests", status=429), DONE]),
    "a list of pods took too long": Server([RUNNING, RUNNING, DONE], errors_of_pods=[None, EXPIRED]),
}


@pytest.mark.parametrize("which", PASSING)
async def test_a_log_is_followed_on_after_an_error_that_passes(which, monkeypatch) -> None:
    monkeypatch.setattr(logs, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr("ddpjob.client.outage.RETRY_SECONDS", 0.01)
    assert "first" in await texts(followed(PASSING[which]))


async def test_a_log_that_nobody_may_read_is_an_error_while_another_one_is_still_read() -> None:
    pods = [pod for rank in range(2) if (pod := read_pod(pod_body(rank))) is not None]
    server: Any = Server([DONE], lines=iter(()), refused=frozenset({"j-1-0"}))
    with pytest.raises(ForbiddenError):
        await texts(logs.finished_log(server, "ns", pods, logs.Selection(), lambda _: None))
