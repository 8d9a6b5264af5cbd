"""What `ddpjob run` and `ddpjob explain` print in common lives of a job, as golden files.

The statuses and pods are those that the operator and the kubelets of the simulation write. Log lines are left out, because
they are the program's.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from ddpjob.client import Client, Job
from ddpjob.client.jobs import read_job, read_pod
from ddpjob_cli import run_cluster
from ddpjob_cli.explanation import explained
from ddpjob_operator.api.names import Reason
from simulation.api_server import JOBS, PODS, Body
from simulation.containers import Fate
from simulation.runner import lead
from simulation.schedule import Schedule, Step
from simulation.world import World
from support import golden

FAILS = Fate(kind="fail", after_seconds=20, rank=1)
GANG: dict[str, Any] = {
    "nodes": 2,
    "places": 1,
    "num_machines": 3,
    "trainer": True,
    "train_seconds": 30,
    "reads_progress": True,
}
#: Each life, and the last status of which reason is explained.
LIVES: dict[str, tuple[Schedule, Reason]] = {
    "succeeds": (Schedule(**GANG), Reason.SUCCEEDED),
    "program-error": (Schedule(**GANG, max_restarts=0, fates=(FAILS,)), Reason.PROGRAM_ERROR),
    "restarts": (Schedule(**GANG, fates=(FAILS, FAILS)), Reason.BACKING_OFF),
    "waits-for-gpus": (
        Schedule(
            **GANG, steps=(Step(after_seconds=0, do="fill_nodes", pick=1), Step(after_seconds=90, do="free_nodes"))
        ),
        Reason.UNSCHEDULABLE,
    ),
    "stopped-by-user": (Schedule(**GANG, steps=(Step(after_seconds=15, do="suspend"),)), Reason.SUSPENDED),
}


class Memory:
    """The job after each change of its status, with its pods at that moment; and the client of a user who watches it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.moments: list[tuple[Job, list[Body]]] = []
        self.asynchronous = self

    def on_change(self, plural: str, old: Body | None, new: Body | None, by: str) -> None:  # noqa: ARG002
        """Keep the job if its status has changed."""
        if plural == JOBS and new is not None and "status" in new:
            self.moments.append((read_job(new), self._world.server.all(PODS)))

    def call(self, work: Any) -> Any:
        """As a client does for a user."""
        return asyncio.run(work)

    async def watch(self, *_: object, **__: object) -> AsyncIterator[Job]:
        """All that was kept."""
        for job, _pods in self.moments:
            yield job

    async def logs(self, *_: object, **__: object) -> AsyncIterator[Any]:
        """Nothing is printed."""
        lines: list[Any] = []
        for line in lines:
            yield line


@pytest.mark.usefixtures("constant_delays")
@pytest.mark.parametrize("life", LIVES)
def test_the_text_of_a_life_is_the_one_in_its_golden_file(life: str, capsys: pytest.CaptureFixture[str]) -> None:
    schedule, reason = LIVES[life]
    world = World(schedule)
    memory = Memory(world)
    world.server.observers.append(memory)
    lead(world)

    run_cluster.show_to_the_end(cast("Client", memory), memory.moments[0][0], 1, verbose=False, show_status=False)
    printed = capsys.readouterr()
    job, pods = next(moment for moment in reversed(memory.moments) if moment[0].status.reason == reason)
    lines = ["$ ddpjob run job.yaml", *printed.err.splitlines(), "", f"$ ddpjob explain job    # {reason}"]
    for section in explained(
        job, [pod for body in pods if (pod := read_pod(body)) and pod.attempt == job.status.attempt]
    ):
        lines += [section.title, *(f"  {line}" for line in section.lines)]
    assert not printed.out
    golden.check(Path(__file__).parent / "texts" / f"{life}.txt", "\n".join(lines))
