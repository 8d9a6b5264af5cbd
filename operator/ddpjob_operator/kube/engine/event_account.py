"""The Events of one job: how often each has happened, and how many more writes the job may cause."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from ddpjob_operator.core.events import Notice
from ddpjob_operator.core.model import Body
from ddpjob_operator.core.times import rfc3339

#: Writes of Events that a job may cause at once, and the time after which one more is allowed. The Event of a
#: job's end is free.
BUDGET = 10
SECONDS_FOR_ONE_MORE = 120.0


@dataclass(slots=True, kw_only=True)
class EventSeries:
    """One Event, and how often it has happened."""

    namespace: str
    body: Body
    """The Event as it is created, but for the two fields that change."""
    count: int = 0
    last_at: float = 0.0
    written_count: int = 0

    def changing(self) -> dict[str, object]:
        """The fields that change when it happens again."""
        return {"count": self.count, "lastTimestamp": rfc3339(self.last_at)}


@dataclass(slots=True, kw_only=True)
class EventAccount:
    """A job's Events and its budget. Times are those of the monotonic clock."""

    tokens: float = float(BUDGET)
    counted_at: float = field(default_factory=time.monotonic)
    series: OrderedDict[Notice, EventSeries] = field(default_factory=OrderedDict)

    def use_token(self, now: float) -> bool:
        """Use one token, if there is one."""
        self.tokens = min(self.tokens + (now - self.counted_at) / SECONDS_FOR_ONE_MORE, float(BUDGET))
        self.counted_at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True
