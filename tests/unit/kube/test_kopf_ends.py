"""kopf ends for each error of a watch except 410, and where it may not watch; the operator goes on and starts it again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ddpjob_operator import kopf_adapter
from ddpjob_operator.kopf_adapter import KopfWatch
from support.engine import happens


@pytest.mark.parametrize("end", [RuntimeError("403: ddpjobs is forbidden"), None], ids=["an error", "a return"])
async def test_an_end_of_kopf_is_followed_by_a_look_at_the_jobs_and_by_its_next_start(
    end: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kopf_adapter, "FIRST_PAUSE_SECONDS", 0.0)
    log: list[str] = []

    async def run(_: KopfWatch, started: Callable[[], None]) -> None:
        started()
        if end is not None:
            raise end

    async def ended(error: Exception) -> None:
        log.append(f"ended: {error}")

    monkeypatch.setattr(KopfWatch, "run", run)
    nothing: Any = None
    watch = KopfWatch(nothing, "team-a", nothing)
    task = asyncio.create_task(watch.keep_running(lambda: log.append("started"), ended))
    await happens(lambda: len(log) >= 4)
    why = "403: ddpjobs is forbidden" if end else "it ended without an error"
    assert log[:4] == ["started", f"ended: {why}"] * 2
    task.cancel()


async def test_what_a_start_cannot_repair_ends_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CRD was deleted."""

    async def run(*_: Any) -> None:
        raise RuntimeError("404")

    async def ended(_: Exception) -> None:
        raise LookupError("install the CRD again")

    monkeypatch.setattr(KopfWatch, "run", run)
    nothing: Any = None
    with pytest.raises(LookupError, match="install the CRD again"):
        await KopfWatch(nothing, None, nothing).keep_running(lambda: None, ended)
