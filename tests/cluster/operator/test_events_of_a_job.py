"""The Events of jobs that the real operator process drives."""

import re
from typing import Any

import pytest

import testbed
from ddpjob_operator.kube.engine.event_recorder import BUDGET
from ddpjob_operator.transport.resources import EVENTS
from operator_cluster import Namespace, OperatorProcess, eventually

pytestmark = pytest.mark.usefixtures("operator_process")


async def events_of(namespace: Namespace, job: str) -> list[dict[str, Any]]:
    found = [dict(item) async for page in namespace.client.pages(EVENTS, namespace.name) for item in page.items]
    return [
        event
        for event in found
        if (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("DDPJob", job)
    ]


async def has_event(namespace: Namespace, job: str, reason: str) -> list[dict[str, Any]]:
    """Wait for an Event with this reason; gives all of the job."""

    async def so() -> list[dict[str, Any]]:
        events = await events_of(namespace, job)
        return events if reason in {event["reason"] for event in events} else []

    return await eventually(f"an Event {reason}", so)


async def test_a_job_that_runs_well_has_two(namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2)
    await namespace.reaches("j", "Running")
    for rank in range(2):
        await namespace.ends(f"j-1-{rank}", 0)
    await namespace.reaches("j", "Succeeded")
    events = await has_event(namespace, "j", "Succeeded")
    # Both may be of one second, and their names are random.
    assert sorted((event["type"], event["reason"], event["count"]) for event in events) == [
        ("Normal", "Running", 1),
        ("Normal", "Succeeded", 1),
    ]


async def test_describe_tells_what_went_wrong(cluster: testbed.ControlPlane, namespace: Namespace) -> None:
    await namespace.apply("j", nodes=2, restart={"maxRestarts": 0})
    await namespace.reaches("j", "Running")
    await namespace.ends("j-1-1", 3, "ValueError: label 12 is out of range")
    await namespace.reaches("j", "Failed")
    await has_event(namespace, "j", "ProgramError")
    text = cluster.kubectl("describe", "ddpjob", "j", "-n", namespace.name)
    (line,) = [line for line in text.partition("\nEvents:\n")[2].splitlines() if "ProgramError" in line]
    assert line.split()[0] == "Warning"
    for part in ("j-1-1", "exit code 3", "ValueError: label 12 is out of range"):
        assert part in line


async def test_a_job_with_too_many_events_stays_within_its_budget(
    namespace: Namespace, operator_process: OperatorProcess
) -> None:
    """Each suspension is an Event, and so is each start after it."""
    before = num_over_budget(operator_process)
    await namespace.apply("j", nodes=1)
    await namespace.reaches("j", "Running")
    num_cycles = BUDGET // 2 + 1
    for attempt in range(2, num_cycles + 2):
        await namespace.edit("j", suspend=True)
        await namespace.reaches("j", "Suspended", attempt)
        await namespace.edit("j", suspend=False)
        await namespace.reaches("j", "Running", attempt)
    left_out = num_over_budget(operator_process) - before
    assert left_out >= 1

    async def the_others_are_written() -> bool:
        return sum(event["count"] for event in await events_of(namespace, "j")) == 1 + 2 * num_cycles - left_out

    await eventually("the Events within the budget", the_others_are_written)


def num_over_budget(operator: OperatorProcess) -> int:
    found = re.search(r'^ddpjob_events_total\{result="over budget"\} (\S+)$', operator.get("/metrics"), re.MULTILINE)
    return int(float(found[1])) if found else 0
