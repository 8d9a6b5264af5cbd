"""Requests of one kind that the API server has refused for a job, and when they are tried again."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.core.model import Rejection

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0


@dataclass(slots=True)
class Refused:
    """Requests of one kind that were refused in their last round."""

    rejections: dict[str, Rejection] = field(default_factory=dict)
    in_a_row: int = 0
    retry_at: float = 0.0

    @property
    def seconds_to_retry(self) -> float:
        """Time until the requests may be tried again; 0 if none waits."""
        return max(self.retry_at - time.monotonic(), 0.0) if self.rejections else 0.0

    def record(self, tried: Collection[str], rejections: Mapping[str, Rejection], *, some_done: bool) -> None:
        """Record a round that tried the objects of these names; the next comes later each time, unless some were done."""
        others = {name: why for name, why in self.rejections.items() if name not in tried}
        refused = {name: replace(why, since=self._since(name, why)) for name, why in rejections.items()}
        self.rejections = {**others, **refused}
        if rejections:
            self.in_a_row = 1 if some_done else self.in_a_row + 1
            delay = doubled(FIRST_RETRY_SECONDS, self.in_a_row - 1, LAST_RETRY_SECONDS)
            self.retry_at = time.monotonic() + delay

    def _since(self, name: str, why: Rejection) -> float:
        known = self.rejections.get(name)
        return known.since if known is not None and known.is_on_purpose and why.is_on_purpose else time.time()

    def keep(self, names: Collection[str]) -> None:
        """Drop what was refused of objects of other names."""
        self.rejections = {name: why for name, why in self.rejections.items() if name in names}
        if not self.rejections:
            self.in_a_row = 0
