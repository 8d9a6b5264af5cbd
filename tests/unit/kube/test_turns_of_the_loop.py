"""After a start or a handover every job is reconciled, and the Lease, the watches and the probes have to go on meanwhile."""

import asyncio
from itertools import pairwise

import pytest

from ddpjob_operator.kube.engine.reconciler import Reconciler
from ddpjob_operator.kube.engine.workqueue import WorkQueue
from ddpjob_operator.kube.fair_share import Shares
from ddpjob_operator.kube.keys import Key
from support.bodies import job_body
from support.engine import Engine, happens

NUM_JOBS = 200


async def test_other_parts_of_the_process_run_between_two_reconciles_that_send_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled: list[Key] = []

    async def reconcile(_: Reconciler, key: Key) -> None:
        handled.append(key)

    monkeypatch.setattr(Reconciler, "reconcile", reconcile)
    engine = Engine(None, progress_interval_seconds=0)
    for number in range(NUM_JOBS):
        engine.store.jobs.put(job_body(1, uid=f"job-{number}", namespace=f"team-{number}"))
    worker = asyncio.create_task(engine.reconciler.work())
    handled_before_each_turn: list[int] = []

    def has_turn() -> bool:
        handled_before_each_turn.append(len(handled))
        return len(handled) == NUM_JOBS

    await happens(has_turn, every_seconds=0)
    steps = [after - before for before, after in pairwise(handled_before_each_turn)]
    assert max(steps) == 1
    worker.cancel()


async def test_the_next_key_costs_the_same_however_many_namespaces_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    held = Shares.held

    def counted(self: Shares, namespace: str) -> int:
        looks.append(namespace)
        return held(self, namespace)

    async def looks_per_key(num_namespaces: int) -> float:
        queue = WorkQueue(8)
        for number in range(num_namespaces):
            queue.add((f"team-{number}", "job"))
        looks.clear()
        for _ in range(num_namespaces):
            queue.done(await queue.get())
        return len(looks) / num_namespaces

    monkeypatch.setattr(Shares, "held", counted)
    assert await looks_per_key(1000) == await looks_per_key(10)


async def test_a_namespace_of_which_all_workers_hang_holds_up_no_key_of_the_others() -> None:
    queue = WorkQueue(4)
    for number in range(10):
        queue.add(("hanging", f"job-{number}"), first=True)
    taken = [await queue.get(), await queue.get()]
    queue.add(("quick", "job"))
    assert await queue.get() == ("quick", "job")
    queue.done(taken[0])
    assert (await queue.get())[0] == "hanging"
