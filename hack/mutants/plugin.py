"""A plugin of pytest that records which test runs which lines."""

from collections.abc import Iterator

import coverage
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines that run until the next test belong to this test, those of its fixtures as well."""
    measurement = coverage.Coverage.current()
    assert measurement is not None
    measurement.switch_context(item.nodeid.split("[")[0])
    try:
        return (yield)
    finally:
        measurement.switch_context("")
