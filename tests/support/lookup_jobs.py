"""A job and its pods, for tests of what is read in the background."""

import asyncio
from typing import Any

from ddpjob_operator.core.model import Job, Observed, Pod

JOB = Job(namespace="ns", name="j", uid="j1", resource_version="1", generation=1, deleting=False, spec=None)

KEY = ("ns", "j")


def rank0(uid: str = "p0", *, replacement: int = 0, running: bool = True) -> Pod:
    """A pod of rank 0 in attempt 1."""
    fields: dict[str, Any] = dict.fromkeys(Pod.__dataclass_fields__)
    fields |= {"name": f"{uid}-pod", "uid": uid, "rank": 0, "attempt": 1, "replacement": replacement}
    return Pod(**fields | {"running": running})


def seen(*uids: str, of: Job = JOB) -> Observed:
    """The job with pods of these uids."""
    return Observed(job=of, pods=tuple(rank0(uid) for uid in uids))


class Keys(asyncio.Queue[tuple[str, str]]):
    """The keys of jobs that are to be reconciled."""

    async def next(self) -> tuple[str, str]:
        """The next one; waits for it."""
        return await asyncio.wait_for(self.get(), 600)


async def minutes_pass() -> None:
    """Wait so long that a read that must not happen would have happened."""
    await asyncio.sleep(600)
