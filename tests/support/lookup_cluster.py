"""A job, its pods and a stand-in for the API server, for tests of what is read in the background."""

import asyncio
from typing import Any

from ddpjob_operator.core.model import Job, Observed, Pod
from ddpjob_operator.transport.errors import ApiError

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


class Cluster:
    """Answers each request with the given log or node; counts the requests."""

    def __init__(self, log: str | ApiError = "", node: dict[str, Any] | ApiError | None = None) -> None:
        self.log, self.node = log, node
        self.num_logs = self.num_nodes = self.at_once = self.most_at_once = 0
        self.seconds = 0.0

    async def pod_log(self, *_: Any, **__: Any) -> str:
        """The log of any pod."""
        self.num_logs += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(self.seconds)
        self.at_once -= 1
        if isinstance(self.log, ApiError):
            raise self.log
        return self.log

    async def get(self, *_: Any) -> dict[str, Any]:
        """Any node."""
        self.num_nodes += 1
        if isinstance(self.node, ApiError):
            raise self.node
        assert self.node is not None
        return self.node


async def five_intervals() -> None:
    """Wait so long that a read that must not happen would have happened."""
    await asyncio.sleep(0.05)


class Keys(asyncio.Queue[tuple[str, str]]):
    """The keys of jobs that are to be reconciled."""

    async def next(self) -> tuple[str, str]:
        """The next one; waits for it."""
        return await asyncio.wait_for(self.get(), 5)
