"""Reads of logs, nodes and Events in the background: how often, how many at a time, and the result of a failed read."""

from dataclasses import replace
from typing import Any, cast

import pytest

from ddpjob_operator.api.names import ConditionType, contract
from ddpjob_operator.api.status import Condition, DDPJobStatus, Progress
from ddpjob_operator.core.actions import ReadLog, ReadNode, ReadScaleUp, ReadWarning
from ddpjob_operator.core.model import NO_LOG, Body, LogEnd, Observed, ScaleUp
from ddpjob_operator.core.times import epoch_seconds
from ddpjob_operator.core.untrusted import MAX_SHOWN_LENGTH
from ddpjob_operator.kube.lookups import log_reader
from ddpjob_operator.kube.lookups.lookups import Lookups
from ddpjob_operator.kube.lookups.node_reader import NodeState
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import ApiError, NotFoundError, RejectedError, ThrottledError, UnavailableError
from ddpjob_operator.transport.resources import EVENTS, NODES
from support.engine import happens
from support.fake_server import FakeServer
from support.lookup_jobs import JOB, KEY, Keys, minutes_pass, rank0, seen

pytestmark = pytest.mark.usefixtures("virtual_clocks")
ENDED = DDPJobStatus(
    attempt=2,
    conditions=[
        Condition(type=ConditionType.FAILED, status="True", reason="x", last_transition_time="2026-01-01T00:00:00Z")
    ],
)
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: boom\n'
READY: dict[str, Any] = {"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def lookups_of(server: FakeServer) -> tuple[Lookups, Keys]:
    keys = Keys()
    return Lookups(cast("Client", server), keys.put_nowait), keys


async def log_of(server: FakeServer) -> LogEnd:
    """What a pod's log is once it was looked up."""
    lookups, keys = lookups_of(server)
    lookups.update(seen("p0"), [ReadLog(pod="p", uid="p0")])
    await keys.next()
    return lookups.logs(KEY)["p0"]


async def test_a_log_is_read_once_and_kept_while_its_pod_is_there() -> None:
    server = FakeServer(log="x" * 200_000 + "\nthe end")
    lookups, keys = lookups_of(server)
    for _ in range(3):
        lookups.update(seen("p0"), [ReadLog(pod="p", uid="p0")])
    assert await keys.next() == KEY
    lookups.update(seen("p0"), [ReadLog(pod="p", uid="p0")])
    assert lookups.logs(KEY)["p0"] == LogEnd(last_line="the end")
    assert server.num("log") == 1
    lookups.update(seen("another"), [])
    assert lookups.logs(KEY) == {}


async def test_the_log_of_an_init_container_is_its_own() -> None:
    server = FakeServer(log="wget: bad address")
    lookups, keys = lookups_of(server)
    lookups.update(seen("p0"), [ReadLog(pod="p", uid="p0", container="fetch")])
    await keys.next()
    assert server.containers == ["fetch"]


async def test_an_exception_after_a_line_of_megabytes_is_read() -> None:
    """The limit in bytes cuts the end of the lines that are read, so the last lines are read as well."""

    pieces = [*("0" * 16_384 for _ in range(200)), *TRACEBACK.splitlines()]  # as the kubelet counts lines
    assert (await log_of(FakeServer(log="\n".join(pieces)))).exception == "ValueError: boom"


async def test_what_the_logs_of_a_bounded_number_of_jobs_show_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "MAX_JOBS", 3)
    server = FakeServer(log="ValueError: boom")
    lookups, keys = lookups_of(server)
    for number in range(10):
        of = replace(JOB, name=f"j{number}")
        lookups.update(seen("p0", of=of), [ReadLog(pod="p", uid="p0")])
        await keys.next()
    assert [number for number in range(10) if lookups.logs(("ns", f"j{number}"))] == [7, 8, 9]

    lookups.update(seen("p0", of=replace(JOB, name="j0")), [ReadLog(pod="p", uid="p0")])
    assert await keys.next() == ("ns", "j0"), "who needs it again has it read again"


@pytest.mark.parametrize("error", [NotFoundError("log", "no"), UnavailableError("log", "late")])
async def test_a_log_that_cannot_be_read_is_empty(error: ApiError) -> None:
    assert await log_of(FakeServer(log=error)) == NO_LOG


@pytest.mark.parametrize("error", [UnavailableError("log", "connection refused"), ThrottledError("log", "later")])
async def test_a_log_is_read_again_while_the_api_server_is_not_available(error: ApiError) -> None:
    """A job that ends just after an outage: its last progress is read once, and has the restarts in place."""
    server = FakeServer(log=f'{contract.PROGRESS_PREFIX}{{"step": 9, "inPlaceRestarts": 1}}')
    server.refuse = lambda _: error if server.num("log") < 4 else None
    assert (await log_of(server)).progress == Progress(step=9, in_place_restarts=1)


async def test_a_log_that_is_not_there_is_not_read_again() -> None:
    assert await log_of(server := FakeServer(log=NotFoundError("log", "no"))) == NO_LOG
    assert server.num("log") == 1


async def test_a_log_that_cannot_be_parsed_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the decision that waits for it would never be made."""

    def parse(_: str) -> LogEnd:
        raise RecursionError

    monkeypatch.setattr(log_reader, "end_of_log", parse)
    assert await log_of(FakeServer(log="x")) == NO_LOG


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        (DDPJobStatus(attempt=2), {"p1", "p2"}),
        (DDPJobStatus(attempt=2, running_since="2026-11-22T10:00:00Z"), {"p2"}),
        (DDPJobStatus(attempt=3), {"p2"}),
        (ENDED, set()),
    ],
    ids=["the failure may be explained better", "the next attempt runs", "a later attempt", "the job has ended"],
)
async def test_logs_are_kept_as_long_as_a_decision_may_read_them(status: DDPJobStatus, kept: set[str]) -> None:
    lookups, keys = lookups_of(FakeServer(log="x"))
    pods = tuple(replace(rank0(f"p{attempt}"), attempt=attempt) for attempt in (1, 2))
    before = Observed(job=replace(JOB, status=DDPJobStatus(attempt=2)), pods=pods)
    lookups.update(before, [ReadLog(pod=pod.name, uid=pod.uid) for pod in pods])
    for _ in pods:
        await keys.next()
    assert lookups.logs(KEY).keys() == {"p1", "p2"}
    lookups.update(replace(before, job=replace(JOB, status=status)), [])
    assert lookups.logs(KEY).keys() == kept


async def test_a_node_is_read_as_long_as_its_lookup_is_wanted() -> None:
    server = FakeServer()
    server.put(NODES, READY, None)
    lookups, keys = lookups_of(server)
    lookups.update(seen(), [ReadNode(name="n")])
    await happens(lambda: server.num("get") >= 3)
    assert keys.empty()  # An alive node is no news.
    assert lookups.nodes(KEY, NodeState.GONE) == frozenset()
    server.remove(NODES, "n", None)
    assert await keys.next() == KEY
    assert lookups.nodes(KEY, NodeState.GONE) == {"n"}
    lookups.update(seen(), [])
    num_reads = server.num("get")
    await minutes_pass()
    assert server.num("get") == num_reads
    assert lookups.nodes(KEY, NodeState.GONE) == frozenset()


@pytest.mark.parametrize(
    ("error", "conditions"),
    [
        (RejectedError("get", "forbidden", status=403), []),
        (UnavailableError("get", "late"), []),
        (None, [{}]),
    ],
    ids=["forbidden", "late", "not what a Node looks like"],
)
async def test_a_node_that_cannot_be_read_is_not_gone_and_is_read_again(
    error: ApiError | None, conditions: list[Body]
) -> None:
    server = FakeServer(refuse=lambda _: error)
    server.put(NODES, {**READY, "status": {"conditions": conditions}}, None)
    lookups, keys = lookups_of(server)
    lookups.update(seen(), [ReadNode(name="n")])
    await happens(lambda: server.num("get") >= 3)
    assert lookups.nodes(KEY, NodeState.GONE) == frozenset()
    server.remove(NODES, "n", None)
    server.refuse = lambda _: None
    assert await keys.next() == KEY
    assert lookups.nodes(KEY, NodeState.GONE) == {"n"}
    await lookups.stop()


async def test_without_the_right_on_nodes_the_log_says_so_once(caplog) -> None:
    server = FakeServer(refuse=lambda _: RejectedError("get", "forbidden", status=403))
    lookups, _ = lookups_of(server)
    lookups.update(seen(), [ReadNode(name=f"n{number}") for number in range(5)])
    await happens(lambda: server.num("get") >= 50)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "nodes cannot be read, so lost nodes are not noticed: get: forbidden"
    ]
    await lookups.stop()


def with_events(*events: Body) -> FakeServer:
    server = FakeServer()
    for event in events:
        happened(server, event)
    return server


def happened(server: FakeServer, event: Body) -> None:
    """The server has one more Event. It comes first in lists, whose order says nothing of the time."""
    name = f"event-{999 - len(server.names(EVENTS))}"
    server.put(EVENTS, {**event, "metadata": {"name": name, **event.get("metadata", {})}})


def warning(message: str, uid: str = "p0", reason: str = "FailedMount") -> dict[str, Any]:
    about = {"kind": "Pod", "uid": uid}
    return {"type": "Warning", "reason": reason, "message": message, "involvedObject": about}


async def test_of_a_warning_no_more_is_kept_than_is_shown() -> None:
    lookups, keys = lookups_of(with_events(warning("x" * 10**6 + "\x1b[31m no volume")))
    lookups.update(seen("p0"), [ReadWarning(pod="p", uid="p0")])
    await keys.next()
    (kept,) = lookups.warnings(KEY).values()
    assert (len(kept), kept[-12:]) == (MAX_SHOWN_LENGTH, "xx no volume")
    await lookups.stop()


async def test_warnings_of_a_pod_are_followed_while_it_is_looked_up() -> None:
    server = with_events(warning("an older one"), warning("no volume"), warning("see the status", reason="BackOff"))
    lookups, keys = lookups_of(server)
    lookups.update(seen("p0"), [ReadWarning(pod="p", uid="p0")])
    assert await keys.next() == KEY
    assert lookups.warnings(KEY) == {"p0": "no volume"}
    await happens(lambda: server.num("list") >= 4)
    assert keys.empty(), "the same warning is no news"

    happened(server, warning("another volume"))
    assert await keys.next() == KEY
    assert lookups.warnings(KEY) == {"p0": "another volume"}
    lookups.update(seen("p0"), [])
    assert lookups.warnings(KEY) == {}
    await lookups.stop()


def announcement(pod: str, reason: str, message: str, at: str, last: str | None = None) -> dict[str, Any]:
    """An Event of an autoscaler about a pod, first and last at these times of one day."""
    metadata = {"creationTimestamp": f"2027-01-15T{at}Z"}
    about = {"involvedObject": {"kind": "Pod", "name": pod}, "lastTimestamp": f"2027-01-15T{last}Z" if last else None}
    return {"reason": reason, "message": message, "metadata": metadata, **about}


async def test_nodes_that_an_autoscaler_announces_for_a_job_are_found() -> None:
    server = with_events(
        announcement("j-1-0", "TriggeredScaleUp", "pod triggered scale-up: [{gpus 1->2 (max: 3)}]", "08:00:10"),
        announcement("j-2-1-r2", "Nominated", "Pod should schedule on: nodeclaim/gpu-x", "08:00:20", "08:01:00"),
        announcement("j-1-2", "Nominated", "Pod should schedule on: node/old", "07:00:00"),
        announcement("j-2-1-0", "TriggeredScaleUp", "of the job j-2", "07:00:00"),
        announcement("j-x7f9k", "TriggeredScaleUp", "no pod of a job", "07:00:00"),
    )
    lookups, keys = lookups_of(server)
    lookups.update(seen("p0"), [ReadScaleUp(job="j")])
    assert await keys.next() == KEY
    assert lookups.scale_up(KEY) == ScaleUp(
        since=epoch_seconds("2027-01-15T08:00:10Z"), latest=epoch_seconds("2027-01-15T08:01:00Z")
    )
    lookups.update(seen("p0"), [])
    assert lookups.scale_up(KEY) is None
    await lookups.stop()


async def test_nodes_are_no_longer_announced_once_the_autoscaler_adds_none_for_another_pod() -> None:
    server = with_events(announcement("j-1-0", "TriggeredScaleUp", "gpus 1->2", "08:00:10"))
    lookups, keys = lookups_of(server)
    lookups.update(seen("p0"), [ReadScaleUp(job="j")])
    assert await keys.next() == KEY
    assert lookups.scale_up(KEY) is not None
    refused = announcement("j-1-1", "NotTriggerScaleUp", "1 max node group size reached", "08:00:20")
    happened(server, refused)
    assert await keys.next() == KEY
    assert lookups.scale_up(KEY) is None
    happened(server, announcement("j-1-1", "TriggeredScaleUp", "gpus 2->3", "08:00:30"))
    assert await keys.next() == KEY
    assert lookups.scale_up(KEY) == ScaleUp(
        since=epoch_seconds("2027-01-15T08:00:10Z"), latest=epoch_seconds("2027-01-15T08:00:30Z")
    )
    await lookups.stop()


async def test_all_jobs_of_a_namespace_share_one_list_of_warnings() -> None:
    server = with_events(*(warning(f"no volume {number}", f"p{number}") for number in range(30)))
    lookups, keys = lookups_of(server)
    jobs = [replace(JOB, name=f"j{number}") for number in range(30)]
    for number, of in enumerate(jobs):
        lookups.update(seen(f"p{number}", of=of), [ReadWarning(pod="p", uid=f"p{number}")])
    assert {await keys.next() for _ in jobs} == {("ns", of.name) for of in jobs}
    assert lookups.warnings(("ns", "j7")) == {"p7": "no volume 7"}
    assert server.num("list") == 1
    await lookups.stop()


async def test_few_causes_and_nodes_are_read_at_a_time() -> None:
    server = FakeServer()
    server.answer_seconds = 1.0
    lookups, _ = lookups_of(server)
    for number in range(30):
        lookups.update(seen(f"p{number}", of=replace(JOB, name=f"j{number}")), [ReadLog(pod="p", uid=f"p{number}")])
    await happens(lambda: server.num("log") >= 30)
    assert server.most_open == log_reader.MAX_AT_ONCE
    await lookups.stop()
