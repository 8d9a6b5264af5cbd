"""The elector of one process against a real Lease."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from ddpjob_operator.kube.lease import Elector, LeaseLostError
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import UnavailableError
from ddpjob_operator.transport.resources import LEASES
from operator_cluster import Namespace, eventually

#: A request may take a quarter of it: on a busy machine tens of milliseconds become a second.
LEASE_SECONDS = 6
NOWHERE = "https://127.0.0.1:1"
Elect = Callable[[str], Awaitable[tuple[Elector, Client]]]


@pytest.fixture
async def elect(namespace: Namespace) -> AsyncIterator[Elect]:
    """An elector of the test's Lease, which it follows, and the client that it alone uses."""
    following: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as clients:

        async def one(identity: str) -> tuple[Elector, Client]:
            client = await clients.enter_async_context(Client((await load_access()).configuration))
            elector = Elector(client, namespace.name, "operator", identity, LEASE_SECONDS)
            following.append(asyncio.create_task(elector.follow()))
            return elector, client

        yield one
        for task in following:
            task.cancel()


async def test_of_several_that_come_at_once_one_wins(elect: Elect) -> None:
    electors = [(await elect(f"e{number}"))[0] for number in range(5)]
    won = await asyncio.gather(*(elector.try_acquire() for elector in electors))
    assert sum(won) == 1
    assert [elector.held() for elector in electors] == won


@pytest.mark.parametrize("renewed", ["2001-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
async def test_the_holder_s_clock_is_not_believed(namespace: Namespace, elect: Elect, renewed: str) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}
    await namespace.client.create(LEASES, namespace.name, {"metadata": {"name": "operator"}, "spec": spec})
    elector, _ = await elect("e")
    started_at = time.monotonic()
    await asyncio.wait_for(elector.acquire(), 20)
    assert time.monotonic() - started_at >= LEASE_SECONDS


async def test_a_holder_that_renews_keeps_its_lease(elect: Elect) -> None:
    holder, _ = await elect("holder")
    other, _ = await elect("other")
    assert await holder.try_acquire()
    keeping = asyncio.create_task(holder.keep())
    waiting = asyncio.create_task(other.acquire())
    done, _ = await asyncio.wait((keeping, waiting), timeout=1.5 * LEASE_SECONDS)
    assert not done
    assert holder.held()
    assert not other.held()
    keeping.cancel()
    waiting.cancel()


async def test_a_holder_cut_off_stops_before_another_takes_over_and_ends_when_it_sees_it(elect: Elect) -> None:
    holder, connection = await elect("holder")
    other, _ = await elect("other")
    assert await holder.try_acquire()
    keeping = asyncio.create_task(holder.keep())
    waiting = asyncio.create_task(other.acquire())
    connection._server = NOWHERE  # for renewals; the watch that is open goes on

    async def stopped() -> bool:
        assert not (holder.held() and other.held())
        return not holder.held()

    await eventually("the holder to stop", stopped)
    assert not waiting.done()
    await asyncio.wait_for(waiting, 20)
    with pytest.raises(LeaseLostError, match="operator is held by other, not by holder"):
        await asyncio.wait_for(keeping, 20)


async def test_a_holder_cut_off_that_nobody_replaces_goes_on(elect: Elect) -> None:
    holder, connection = await elect("holder")
    assert await holder.try_acquire()
    keeping = asyncio.create_task(holder.keep())
    server, connection._server = connection._server, NOWHERE

    async def stopped() -> bool:
        return not holder.held()

    await eventually("the holder to stop", stopped)
    await asyncio.wait((keeping,), timeout=LEASE_SECONDS)
    connection._server = server

    async def works_again() -> bool:
        return holder.held()

    await eventually("the holder to go on", works_again)
    assert not keeping.done()
    keeping.cancel()


async def test_a_short_outage_costs_nothing(elect: Elect) -> None:
    holder, connection = await elect("holder")
    assert await holder.try_acquire()
    server, connection._server = connection._server, NOWHERE
    keeping = asyncio.create_task(holder.keep())
    done, _ = await asyncio.wait((keeping,), timeout=LEASE_SECONDS / 2)
    assert not done
    connection._server = server
    done, _ = await asyncio.wait((keeping,), timeout=LEASE_SECONDS)
    assert not done
    assert holder.held()
    keeping.cancel()


async def test_what_others_write_on_the_lease_is_no_loss(namespace: Namespace, elect: Elect) -> None:
    holder, _ = await elect("holder")
    assert await holder.try_acquire()
    keeping = asyncio.create_task(holder.keep())
    for number in range(12):
        patch = {"metadata": {"annotations": {"note": str(number)}}}
        await namespace.client.merge_patch(LEASES, namespace.name, "operator", patch)
        await asyncio.wait((keeping,), timeout=LEASE_SECONDS / 10)
    assert not keeping.done()
    assert holder.held()
    keeping.cancel()


async def test_a_late_word_from_before_takes_nothing_away(namespace: Namespace, elect: Elect) -> None:
    spec = {"holderIdentity": "former", "leaseDurationSeconds": 1}
    former = await namespace.client.create(LEASES, namespace.name, {"metadata": {"name": "operator"}, "spec": spec})
    elector, _ = await elect("e")
    await asyncio.wait_for(elector.acquire(), 20)
    elector._seen = None  # as after a conflict
    elector._note(former)
    assert elector.held()
    assert elector._seen is None


async def test_a_lease_that_was_given_back_is_taken_at_once(elect: Elect) -> None:
    holder, _ = await elect("holder")
    other, _ = await elect("other")
    assert await holder.try_acquire()
    waiting = asyncio.create_task(other.acquire())

    async def stands_by() -> bool:
        return other._seen is not None and other._seen.holder == "holder"

    await eventually("the other to have seen the holder", stands_by)
    await holder.release()
    released_at = time.monotonic()
    assert not holder.held()
    await asyncio.wait_for(waiting, 20)
    print(f"release -> held by another: {time.monotonic() - released_at:.3f} s")
    assert other.held()


async def test_a_client_that_may_not_write_sends_nothing_but_reads(namespace: Namespace, client: Client) -> None:
    allowed = False
    async with Client((await load_access()).configuration, may_write=lambda: allowed) as fenced:
        body = {"metadata": {"name": "operator"}, "spec": {"holderIdentity": "x"}}
        with pytest.raises(UnavailableError, match="does not hold the Lease"):
            await fenced.create(LEASES, namespace.name, body)
        assert await namespace.find(LEASES, "operator") is None
        created = await client.create(LEASES, namespace.name, body)
        assert (await fenced.get(LEASES, namespace.name, "operator"))["metadata"]["uid"] == created["metadata"]["uid"]
        with pytest.raises(UnavailableError):
            await fenced.delete(LEASES, namespace.name, "operator", uid=created["metadata"]["uid"])
        assert await namespace.find(LEASES, "operator") is not None
        allowed = True
        await fenced.delete(LEASES, namespace.name, "operator", uid=created["metadata"]["uid"])
