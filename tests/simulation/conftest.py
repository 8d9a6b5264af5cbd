"""Fixtures of tests that look at one life of a job."""

import pytest

from simulation import api_client


@pytest.fixture
def constant_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and watch events take the same time always, so that another request of the operator changes no later time."""
    monkeypatch.setattr(api_client, "LATENCIES_SECONDS", (0.02,))
    monkeypatch.setattr(api_client, "LAGS_SECONDS", (0.005,))
