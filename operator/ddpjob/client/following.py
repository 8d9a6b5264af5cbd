"""A job over time: watching it, and waiting until it has reached a state."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from ddpjob.client import objects
from ddpjob.client.errors import (
    ConflictError,
    NotFoundError,
    UnreachableError,
    WaitTimeoutError,
    replaced,
    translated,
)
from ddpjob.client.jobs import Goal, Job, read_job
from ddpjob.client.outage import Outage
from ddpjob_operator.api import names
from ddpjob_operator.api.names import ConditionType
from ddpjob_operator.transport.client import Client as Transport
from ddpjob_operator.transport.errors import GoneError
from ddpjob_operator.transport.resources import DDPJOBS

_SECONDS_TO_SUSPEND = 600.0


async def watch(api: Transport, namespace: str, name: str) -> AsyncGenerator[Job, None]:
    """The job as it is now, and again after each change, until it is deleted."""
    uid = ""
    outage = Outage()
    while True:
        try:
            job = await objects.get(api, namespace, name)
            uid = uid or job.uid
            if job.uid != uid:
                raise replaced(namespace, name, "status")
            outage.is_over()
            yield job
            async with aclosing(_changes(api, job)) as changes:
                async for changed in changes:
                    yield changed
        except UnreachableError as error:
            if not uid:
                raise
            await outage.pause(error)


async def _changes(api: Transport, job: Job) -> AsyncGenerator[Job, None]:
    """What becomes of a job, until the server ends the watch."""
    where, name = job.namespace, job.name
    version = job.body["metadata"]["resourceVersion"]
    with translated("watch", DDPJOBS, where, name):
        events = api.watch(DDPJOBS, where, "", version, fields=f"metadata.name={name}")
        try:
            async with aclosing(events):
                async for event in events:
                    if event.type == "DELETED":
                        raise NotFoundError(
                            f"{names.KIND} {where}/{name} was deleted; to list those that exist: ddpjob list -n {where}"
                        )
                    if event.type != "BOOKMARK":
                        yield read_job(event.body)
        except GoneError:  # the job is read again
            return


async def wait(api: Transport, namespace: str, name: str, goal: Goal, seconds: float | None) -> Job:
    """Wait until the job has reached a state, or can no longer reach it."""
    seen: Job | None = None
    try:
        async with asyncio.timeout(seconds), aclosing(watch(api, namespace, name)) as jobs:
            async for job in jobs:
                seen = job
                if job.reached(goal) is not None:
                    return job
    except TimeoutError:
        state = f"it is {seen.phase}: {seen.status.message or 'no message yet'}" if seen else "it was never read"
        raise WaitTimeoutError(
            f"{names.KIND} {namespace}/{name} did not become {goal} within {seconds:g} s: {state}; to see why: ddpjob explain"
            f" {name} -n {namespace}"
        ) from None
    raise AssertionError("a watch ends by an error only")


async def set_suspend(api: Transport, namespace: str, name: str, *, suspend: bool) -> Job:
    """Set spec.suspend of a job that has not finished."""
    job = await objects.get(api, namespace, name)
    if job.finished:
        raise ConflictError(
            f"{names.KIND} {job.namespace}/{name} has {job.phase.lower()} and cannot be suspended, resumed or"
            " restarted; submit it again under another name, or delete it first"
        )
    patch = {"metadata": {"uid": job.uid}, "spec": {"suspend": suspend}}
    with translated("patch", DDPJOBS, job.namespace, name):
        return read_job(await api.merge_patch(DDPJOBS, job.namespace, name, patch))


async def restart(api: Transport, namespace: str, name: str, on_note: Callable[[str], None]) -> Job:
    """Suspend a job, wait until its pods have stopped, and resume it."""
    job = await set_suspend(api, namespace, name, suspend=True)
    title = f"{names.KIND} {job.namespace}/{name}"
    message = job.status.message
    on_note(
        f"{title} is suspended and starts again when its pods have stopped, which may take {_SECONDS_TO_SUSPEND:g} s"
    )
    try:
        async with asyncio.timeout(_SECONDS_TO_SUSPEND), aclosing(watch(api, job.namespace, name)) as jobs:
            async for seen in jobs:
                is_seen = seen.status.observed_generation >= job.generation
                if seen.finished or (is_seen and seen.status.condition(ConditionType.SUSPENDED)):
                    break
                if seen.status.message != message:
                    message = seen.status.message
                    on_note(f"{title}: {message}")
    except TimeoutError:
        raise WaitTimeoutError(
            f"{title}: its pods have not stopped after {_SECONDS_TO_SUSPEND:g} s ({message}); it stays suspended (to"
            f" start it again: ddpjob resume {name} -n {job.namespace})"
        ) from None
    return await set_suspend(api, job.namespace, name, suspend=False)
