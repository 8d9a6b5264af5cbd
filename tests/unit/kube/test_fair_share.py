"""Slots that namespaces share: none can take them all, and one that comes late is served first."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from ddpjob_operator.kube.fair_share import FairSlots, Shares


@pytest.mark.parametrize(
    ("namespaces", "each"), [(1, 16), (2, 10), (3, 8), (7, 4)], ids=["alone", "two", "three", "seven"]
)
def test_however_many_namespaces_take_what_they_may_there_is_one_left_for_the_next(namespaces: int, each: int) -> None:
    shares, names = Shares(32), [f"ns-{number}" for number in range(namespaces)]
    while takers := [name for name in names if shares.may_take(name)]:
        for name in takers:
            if shares.may_take(name):
                shares.take(name)

    assert all(abs(shares.held(name) - each) <= 1 for name in names)
    assert shares.may_take("another")


async def settled() -> None:
    """Let everything run that can run without the end of a hold."""
    for _ in range(100):
        await asyncio.sleep(0)


class Holders:
    """Tasks that take a slot and hold it until they are let go."""

    def __init__(self, slots: FairSlots) -> None:
        self.slots, self.served = slots, list[str]()
        self.ends = dict[str, asyncio.Event]()
        self.tasks = dict[str, asyncio.Task[None]]()

    def start(self, namespace: str, name: str) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(namespace, name))

    async def _hold(self, namespace: str, name: str) -> None:
        async with self.slots.of(namespace):
            self.served.append(name)
            await self.ends[name].wait()


async def test_a_free_slot_goes_to_the_namespace_that_holds_the_fewest() -> None:
    holders = Holders(FairSlots(2))
    for namespace, name in (("a", "a0"), ("b", "b0"), ("a", "a1"), ("c", "c0"), ("c", "c1")):
        holders.start(namespace, name)
    await settled()
    assert holders.served == ["a0", "b0"]

    holders.ends["b0"].set()
    await settled()
    assert holders.served == ["a0", "b0", "c0"], "a1 came earlier, but a holds a slot"
    holders.ends["a0"].set()
    await settled()
    assert holders.served == ["a0", "b0", "c0", "a1"]


async def test_who_is_cancelled_while_waiting_or_holding_leaves_no_slot_behind() -> None:
    slots = FairSlots(2)
    holders = Holders(slots)
    for name in ("a0", "a1", "a2"):
        holders.start("a", name)
    await settled()
    for name in ("a1", "a0"):
        holders.tasks[name].cancel()
    await settled()
    assert holders.served == ["a0", "a2"]
    holders.ends["a2"].set()
    await settled()

    async with AsyncExitStack() as stack:
        await asyncio.wait_for(stack.enter_async_context(slots.of("a")), 5)
        await asyncio.wait_for(stack.enter_async_context(slots.of("b")), 5)
