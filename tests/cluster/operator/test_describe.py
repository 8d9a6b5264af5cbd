"""What `kubectl describe ddpjob` shows of a job on a real API server, as golden files.

What differs between two runs is replaced: times, names of namespaces and nodes, identifiers, and how often an Event came.
"""

import asyncio
import re
from pathlib import Path

import pytest

import testbed
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.events import Notice
from ddpjob_operator.core.records import job_of
from ddpjob_operator.kube.engine import event_recorder
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.transport.client import Client
from support import golden
from support.operator_cluster import Namespace, eventually

pytestmark = pytest.mark.usefixtures("operator_process")
VOLATILE = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "<time>",
    r"(Resource Version: +)\d+": r"\1<version>",
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}": "<uid>",
    r"\boperator-\d+\b": "<namespace>",
    r"\bkwok-[\w.-]+": "<node>",
    r"((?:Active Seconds Before|(?:Lost|Queued|Starting|Training|Unsaved) Seconds): +)[\d.]+": r"\1<seconds>",
    r" +Goodput Percent: .*\n": "",  # only of a job that trained for a second
    r"(Normal|Warning) +(\w+) .*ddpjob-operator +": r"\1  \2  <age>  ddpjob-operator  ",
}


async def ends_with(text: str, cluster: testbed.ControlPlane, namespace: Namespace) -> str:
    """What `kubectl describe` shows of the job once it has an Event with this text; Events come after the status."""

    def described() -> str | None:
        shown = cluster.kubectl("describe", "ddpjob", "job", "-n", namespace.name)
        return shown if text in shown.partition("\nEvents:")[2] else None

    shown = await eventually(f"an Event with {text!r}", described)
    for pattern, stands_for in VOLATILE.items():
        shown = re.sub(pattern, stands_for, shown)
    status, _, events = shown.partition("\nEvents:\n")
    columns, underline, *rows = events.splitlines()
    return "\n".join([status, "Events:", columns, underline, *sorted(rows)])  # those of one second come in any order


async def test_a_job_that_succeeded(cluster: testbed.ControlPlane, namespace: Namespace) -> None:
    await namespace.apply("job", nodes=2)
    await namespace.reaches("job", "Running")
    await namespace.succeeds("job")
    shown = await ends_with("all 2 ranks ended with exit code 0", cluster, namespace)
    golden.check(Path(__file__).parent / "describe" / "succeeds.txt", shown)


async def test_a_job_whose_program_fails_restarts_and_then_fails(
    cluster: testbed.ControlPlane, namespace: Namespace
) -> None:
    await namespace.apply("job", nodes=2, restart={"maxRestarts": 1})
    for attempt in (1, 2):
        await namespace.reaches("job", "Running", attempt)
        await namespace.ends(f"job-{attempt}-1", 1, "ValueError: label 12 is out of range")
    await namespace.reaches("job", "Failed", 2)
    shown = await ends_with("attempt 2: ValueError", cluster, namespace)
    golden.check(Path(__file__).parent / "describe" / "program-error.txt", shown)


async def test_an_event_that_happened_twice_is_one_line_with_its_count(
    cluster: testbed.ControlPlane, client: Client, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(await namespace.apply("job", suspend=True))
    again = Notice(type="Warning", reason="ProgramError", message="Rank 1 ended with exit code 1")
    monkeypatch.setattr(event_recorder, "events_between", lambda *_: (again,))
    recorder = event_recorder.EventRecorder(client, "operator-0", JobMemories())
    writing = asyncio.create_task(recorder.run())
    for _ in range(2):
        recorder.record(job, DDPJobStatus(), DDPJobStatus())

    def described() -> str | None:
        shown = cluster.kubectl("describe", "ddpjob", "job", "-n", namespace.name)
        return next((line for line in shown.splitlines() if "(x2 over " in line), None)

    line = await eventually("the second Event", described)
    assert line.split()[:2] == ["Warning", "ProgramError"]
    assert line.endswith("ddpjob-operator  Rank 1 ended with exit code 1")
    writing.cancel()
