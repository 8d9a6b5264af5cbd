"""The elector of one process on a real Lease; test_lease_failover.py has whole operators."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from ddpjob_operator.kube.lease import Elector
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import UnavailableError
from ddpjob_operator.transport.resources import LEASES
from support.operator_cluster import SECONDS, Namespace, eventually

#: A holder that does not run for less than half of it keeps it, and this process may have to wait for a processor.
LEASE_SECONDS = 12
NOWHERE = "https://127.0.0.1:1"
Elect = Callable[[str], Awaitable[tuple[Elector, Client]]]


@pytest.fixture
async def elect(namespace: Namespace) -> AsyncIterator[Elect]:
    """A function that makes an elector that follows the test's Lease; gives it with its own client."""
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


async def test_exactly_one_of_several_concurrent_electors_wins(elect: Elect) -> None:
    electors = [(await elect(f"e{number}"))[0] for number in range(5)]
    won = await asyncio.gather(*(elector.try_acquire() for elector in electors))
    assert sum(won) == 1
    assert [elector.held() for elector in electors] == won


@pytest.mark.parametrize("renewed", ["2001-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
async def test_the_clock_of_the_holder_does_not_matter(namespace: Namespace, elect: Elect, renewed: str) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}
    await namespace.client.create(LEASES, namespace.name, {"metadata": {"name": "operator"}, "spec": spec})
    started_at = time.monotonic()  # before it sees the Lease
    elector, _ = await elect("e")
    await asyncio.wait_for(elector.acquire(), SECONDS)
    assert time.monotonic() - started_at >= LEASE_SECONDS


async def test_a_holder_renews_over_changes_by_others_and_a_standby_waits(namespace: Namespace, elect: Elect) -> None:
    holder, _ = await elect("holder")
    standby, _ = await elect("standby")
    assert await holder.try_acquire()
    keeping, waiting = asyncio.create_task(holder.keep()), asyncio.create_task(standby.acquire())
    for number in range(12):
        patch = {"metadata": {"annotations": {"note": str(number)}}}
        await namespace.client.merge_patch(LEASES, namespace.name, "operator", patch)
        await asyncio.wait((keeping, waiting), timeout=LEASE_SECONDS / 8, return_when=asyncio.FIRST_COMPLETED)
    assert not keeping.done()
    assert not waiting.done()
    assert holder.held()
    assert not standby.held()
    keeping.cancel()
    waiting.cancel()


async def test_an_outage_without_another_candidate_suspends_the_lease_only_while_it_lasts(elect: Elect) -> None:
    holder, client = await elect("holder")
    connection = client._connection
    assert await holder.try_acquire()
    keeping = asyncio.create_task(holder.keep())
    server, connection._server = connection._server, NOWHERE
    await asyncio.wait((keeping,), timeout=LEASE_SECONDS / 2)
    connection._server = server
    await asyncio.wait((keeping,), timeout=LEASE_SECONDS)
    assert holder.held(), "a short outage costs nothing"
    connection._server = NOWHERE
    await eventually("the holder to stop", lambda: not holder.held())
    await asyncio.wait((keeping,), timeout=LEASE_SECONDS)
    connection._server = server
    await eventually("the holder to continue", holder.held)
    assert not keeping.done()
    keeping.cancel()


async def test_an_older_version_of_the_lease_takes_nothing_away(namespace: Namespace, elect: Elect) -> None:
    spec = {"holderIdentity": "former", "leaseDurationSeconds": 1}
    former = await namespace.client.create(LEASES, namespace.name, {"metadata": {"name": "operator"}, "spec": spec})
    elector, _ = await elect("e")
    await asyncio.wait_for(elector.acquire(), SECONDS)
    elector._seen = None  # as after a conflict
    elector._note(former)
    assert elector.held()
    assert elector._seen is None


async def test_a_client_that_may_not_write_sends_only_reads(namespace: Namespace, client: Client) -> None:
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
