"""A plugin of pytest: it records which test runs which lines, where coverage is measured, and does not wait at the end."""

import os
from collections.abc import Iterator

import coverage
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Lines that run until the next test belong to this test, those of its fixtures as well."""
    if measurement := coverage.Coverage.current():
        measurement.switch_context(item.nodeid.split("[")[0])
    try:
        return (yield)
    finally:
        if measurement:
            measurement.switch_context("")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End at once: a mutant may have left processes and threads behind that Python would wait for."""
    if measurement := coverage.Coverage.current():
        measurement.stop()
        measurement.save()
    session = config.pluginmanager.get_plugin("session")
    os._exit(session.exitstatus if session else pytest.ExitCode.USAGE_ERROR)
