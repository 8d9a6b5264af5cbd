"""What the API server refuses to create, with its message, and when to retry."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.core.model import Action, CreatePod, CreateService, Rejection
from ddpjob_operator.kube.keys import Key

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0


@dataclass(slots=True)
class _Refused:
    rejections: dict[str, Rejection] = field(default_factory=dict)
    in_a_row: int = 0
    retry_at: float = 0.0


class Rejections:
    """By job and name of the object. A quota or an admission policy may change, so nothing is refused for good."""

    def __init__(self) -> None:
        self._refused: dict[Key, _Refused] = {}

    def of(self, key: Key) -> Mapping[str, Rejection]:
        """By name of each object that the server refused last."""
        refused = self._refused.get(key)
        return dict(refused.rejections) if refused else {}

    def record(self, key: Key, rejections: Mapping[str, Rejection], *, some_created: bool) -> None:
        """Record a round of creations that ended with these; the next comes later each time, unless some were created."""
        refused = self._refused.setdefault(key, _Refused())
        refused.rejections |= rejections
        refused.in_a_row = 1 if some_created else refused.in_a_row + 1
        delay = doubled(FIRST_RETRY_SECONDS, refused.in_a_row - 1, LAST_RETRY_SECONDS)
        refused.retry_at = time.monotonic() + delay

    def seconds_to_retry(self, key: Key) -> float:
        """Time until creations may be tried again; 0 for now."""
        refused = self._refused.get(key)
        return max(refused.retry_at - time.monotonic(), 0.0) if refused else 0.0

    def keep_wanted(self, key: Key, actions: Iterable[Action]) -> None:
        """Forget objects that are no longer to be created: they exist by now, or the plan has changed."""
        refused = self._refused.get(key)
        if refused is None:
            return
        wanted = {action.name for action in actions if isinstance(action, CreatePod | CreateService)}
        refused.rejections = {name: why for name, why in refused.rejections.items() if name in wanted}
        if not refused.rejections:
            del self._refused[key]

    def name_is_free(self, namespace: str, name: str) -> list[Key]:
        """An object of this name is gone. Gives the jobs that needed the name and may retry at once."""
        waiting = [key for key, refused in self._refused.items() if key[0] == namespace and name in refused.rejections]
        for key in waiting:
            self._refused[key].retry_at = 0.0
        return waiting

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._refused.pop(key, None)
