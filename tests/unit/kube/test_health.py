"""When the operator reports that it is not alive: only for what a restart repairs."""

from types import SimpleNamespace
from typing import Any

import pytest

from ddpjob_operator.kube.health import FEED_SILENT_SECONDS, STUCK_SECONDS, Health
from support.engine import new_store

LONG = STUCK_SECONDS + 1


@pytest.mark.parametrize(
    ("stuck", "stale", "feed_silent", "said"),
    [
        (0, 0, 0, "ok"),
        (LONG, 0, 0, "the watch of pods has been inactive for 301 s"),
        (0, LONG, 0, "ok"),  # the API server does not answer, and the watch tries again
        (0, 0, FEED_SILENT_SECONDS + 1, "kopf has not delivered known changes of DDPJobs for 601 s"),
        (0, LONG, FEED_SILENT_SECONDS + 1, "ok"),  # the API server is silent
    ],
)
async def test_a_restart_is_asked_for_only_where_it_repairs_something(
    stuck: float, stale: float, feed_silent: float, said: str
) -> None:
    watch: Any = SimpleNamespace(name="pods", stuck_seconds=stuck, stale_seconds=stale, is_refused=False)
    store = new_store()
    answer = await Health(store, [watch], lambda: feed_silent, lambda: True)._livez()
    assert (answer.status, answer.text.decode()) == (200 if said == "ok" else 500, f"{said}\n")
