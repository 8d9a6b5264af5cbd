"""What this process remembers of a job in addition to what the caches show.

All of it is about one job object. A later job of the same name begins with nothing, and what still ends for the earlier one, such
as a request, changes a memory that nobody reads any more.
"""

import math
from dataclasses import dataclass, field

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.model import Job
from ddpjob_operator.kube.engine.event_account import EventAccount
from ddpjob_operator.kube.engine.refused import Refused
from ddpjob_operator.kube.keys import Key, key_of


@dataclass(slots=True, kw_only=True)
class WriteInDoubt:
    """A write of the status after which it is not known what the API server has stored."""

    job: Job | None = None
    """The job as it was before the write; None if another writer came first."""
    status: DDPJobStatus | None = None
    """What was to be written."""


@dataclass(slots=True)
class JobMemory:
    """What is remembered of one job. Times are those of the monotonic clock."""

    uid: str = ""
    creations: dict[str, float] = field(default_factory=dict)
    """By name the deadline for the caches to show what was created."""
    deletions: dict[str, float] = field(default_factory=dict)
    """By uid the deadline for the caches to show what was deleted."""
    refused_set_up: Refused = field(default_factory=Refused)
    """Refused requests of what sets a gang up."""
    refused_removals: Refused = field(default_factory=Refused)
    """Refused requests of what stops or deletes something."""
    written_at: float = -math.inf
    """When the status was last written."""
    ticked_at: float = -math.inf
    """When a write last changed only what merely ticks."""
    begun_attempt: int | None = None
    """The attempt that a write of this process began last."""
    in_doubt: WriteInDoubt | None = None
    events: EventAccount = field(default_factory=EventAccount)


class JobMemories:
    """The memories of all jobs."""

    def __init__(self) -> None:
        self._memories: dict[Key, JobMemory] = {}

    def of(self, key: Key) -> JobMemory:
        """The memory of the job that is reconciled under this key."""
        return self._memories.setdefault(key, JobMemory())

    def of_job(self, job: Job) -> JobMemory:
        """The memory of this very job; one that nobody else has if another job has its key by now."""
        memory = self.of(key_of(job))
        memory.uid = memory.uid or job.uid
        return memory if memory.uid == job.uid else JobMemory(uid=job.uid)

    def known(self, key: Key) -> JobMemory | None:
        """The memory of the job of this key; None while nothing is remembered."""
        return self._memories.get(key)

    def is_of_another(self, job: Job) -> bool:
        """Whether what is remembered under the key of this job belongs to an earlier one of the same name."""
        known = self._memories.get(key_of(job))
        return known is not None and known.uid not in ("", job.uid)

    def forget(self, key: Key) -> None:
        """Forget the job, which no longer exists."""
        self._memories.pop(key, None)
