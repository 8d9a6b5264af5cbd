"""Unit tests of the operator's cluster side run in virtual time: what takes an hour in a cluster takes none here."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from simulation.virtual_time import OperatorClocks, VirtualLoop, installed

#: They use real sockets or signals, which the virtual loop does not have, or count turns of the loop.
IN_REAL_TIME = {
    "test_creation_that_stops",
    "test_health",
    "test_kopf_ends",
    "test_lists",
    "test_lost_namespaces",
    "test_pages",
    "test_settings",
    "test_transport",
    "test_turns_of_the_loop",
}


def pytest_asyncio_loop_factories(
    config: pytest.Config,  # noqa: ARG001 the hook has these parameters
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of each test."""
    is_real = item.path.stem in IN_REAL_TIME
    return {"event loop": asyncio.new_event_loop if is_real else lambda: VirtualLoop(lambda *_: None)}


@pytest.fixture
async def virtual_clocks() -> AsyncIterator[OperatorClocks]:
    """The operator's clocks follow the virtual time, too."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    clocks = OperatorClocks(loop)
    with installed(clocks, seed=0):
        yield clocks
