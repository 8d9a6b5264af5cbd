"""How soon the jobs of one tenant start: alone, next to very many bad jobs of another one, and next to a very large gang."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import monotonic
from typing import Any

from bench.operators.api import Api, Body
from bench.operators.jobs import Jobs, job_names
from bench.operators.measures import JOB_SECONDS, Bench
from bench.operators.observer import Observer

PODS = 4
BAD_JOBS = 500
LARGE_GANG = 4096


async def tenants(bench: Bench) -> None:
    """Jobs of 4 pods one at a time, in three neighbourhoods, until their pods exist: the rest is the scheduler's work and the kubelets'."""
    mine = bench.jobs("mine")
    await mine.make_namespace()
    # The neighbour has connections of its own: what is measured must not wait behind the creation of its jobs.
    async with bench.observer(mine) as seen, await Api.of(Path(os.environ["KUBECONFIG"])) as api:
        names = job_names(0, 3 * bench.sizes.singles)
        parts = [names[number::3] for number in range(3)]
        await _start_jobs(bench, mine, seen, parts[0], "alone")
        async with _neighbour(_bad_jobs(replace(bench.jobs("bad"), api=api))):
            await _start_jobs(bench, mine, seen, parts[1], f"next to {BAD_JOBS} jobs whose pods are refused")
        async with _neighbour(_large_gang(replace(bench.jobs("large"), api=api))):
            await _start_jobs(bench, mine, seen, parts[2], f"next to the creation of {LARGE_GANG} pods")


@asynccontextmanager
async def _neighbour(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Another tenant's jobs, which are created from now on."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await task


async def _start_jobs(bench: Bench, jobs: Jobs, seen: Observer, names: Sequence[str], neighbour: str) -> None:
    seconds = []
    for name in names:
        began = monotonic()
        await jobs.create(name, PODS)
        at = await seen.until(f"the pods of {name}", partial(_all_live, seen, name), JOB_SECONDS)
        seconds.append(at - began)
    p95 = 1000 * quantiles(seconds, n=20)[18]
    bench.row_of(f"{neighbour}: a job created, its {PODS} pods exist", seconds, remark=f"p95 {p95:.0f} ms")


async def _bad_jobs(jobs: Jobs) -> None:
    await jobs.make_namespace()
    bodies = [_refused(jobs.kind.body(name, 8)) for name in job_names(0, BAD_JOBS)]
    await asyncio.gather(*(jobs.api.send("POST", jobs.path, body) for body in bodies))


def _refused(body: Body) -> Body:
    """The job with a template that the API server refuses in every pod."""
    return {**body, "spec": {**body["spec"], "template": {"spec": {"tolerations": [{"operator": "Sometimes"}]}}}}


async def _large_gang(jobs: Jobs) -> None:
    await jobs.make_namespace()
    await jobs.create("b0000", LARGE_GANG)


def _all_live(seen: Observer, name: str) -> bool:
    return len(seen.living[name]) == PODS
