"""What the API server refuses, with its message, and when to retry. A quota or a policy may change, so nothing is refused for good."""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ddpjob_operator.core.actions import Action, DeletePods, Removal, SetUp
from ddpjob_operator.core.backoff import doubled
from ddpjob_operator.core.model import Rejection
from ddpjob_operator.kube.keys import Key

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0


@dataclass(slots=True)
class _Refused:
    """Requests of one kind that were refused in their last round."""

    rejections: dict[str, Rejection] = field(default_factory=dict)
    in_a_row: int = 0
    retry_at: float = 0.0

    @property
    def seconds_to_retry(self) -> float:
        return max(self.retry_at - time.monotonic(), 0.0) if self.rejections else 0.0

    def record(self, tried: Collection[str], rejections: Mapping[str, Rejection], *, some_done: bool) -> None:
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
        self.rejections = {name: why for name, why in self.rejections.items() if name in names}
        if not self.rejections:
            self.in_a_row = 0


@dataclass(slots=True)
class _OfJob:
    set_up: _Refused = field(default_factory=_Refused)
    removals: _Refused = field(default_factory=_Refused)


class Rejections:
    """By job and name of the object, separately for what sets a gang up and for what stops or deletes something."""

    def __init__(self) -> None:
        self._refused: dict[Key, _OfJob] = {}

    def of(self, key: Key) -> Mapping[str, Rejection]:
        """By name of each object that the server refused to create or to update last."""
        return self._refused.get(key, _OfJob()).set_up.rejections

    def are_in(self, namespace: str) -> bool:
        """Whether the server has refused to create or to update something of any job of this namespace last."""
        return any(key[0] == namespace and of_job.set_up.rejections for key, of_job in self._refused.items())

    def removals_of(self, key: Key) -> Mapping[str, Rejection]:
        """By name of each object that the server refused to delete or to stop last."""
        return self._refused.get(key, _OfJob()).removals.rejections

    def record(
        self, key: Key, tried: Collection[Action], rejections: Mapping[str, Rejection], *, some_done: bool
    ) -> None:
        """Record a round of requests that ended with these; the next comes later each time, unless some were carried out."""
        if key not in self._refused and not rejections:
            return
        of_job = self._refused.setdefault(key, _OfJob())
        refused = of_job.removals if any(isinstance(action, Removal) for action in tried) else of_job.set_up
        refused.record({name_of(action) for action in tried}, rejections, some_done=some_done)

    def due(self, key: Key, actions: Iterable[Action]) -> tuple[Action, ...]:
        """Those of the actions that may be tried now.

        While something of the set-up waits for its retry all of it waits, since a quota refuses one pod after another. Of
        the removals only those wait that were refused.
        """
        of_job = self._refused.get(key)
        if of_job is None:
            return tuple(actions)
        waiting = of_job.removals.rejections if of_job.removals.seconds_to_retry else {}
        return tuple(
            action
            for action in actions
            if not (isinstance(action, SetUp) and of_job.set_up.seconds_to_retry)
            and not (isinstance(action, Removal) and name_of(action) in waiting)
        )

    def seconds_to_retry(self, key: Key) -> float:
        """Time until the first of the refused requests may be tried again; 0 if none waits."""
        of_job = self._refused.get(key)
        waiting = (refused.seconds_to_retry for refused in (of_job.set_up, of_job.removals)) if of_job else ()
        return min((seconds for seconds in waiting if seconds), default=0.0)

    def keep_wanted(self, key: Key, actions: Iterable[Action]) -> None:
        """Forget requests that are no longer wanted: their effect is there by now, or the plan has changed."""
        of_job = self._refused.get(key)
        if of_job is None:
            return
        actions = tuple(actions)
        of_job.set_up.keep({name_of(action) for action in actions if isinstance(action, SetUp)})
        of_job.removals.keep({name_of(action) for action in actions if isinstance(action, Removal)})
        if not of_job.set_up.rejections and not of_job.removals.rejections:
            del self._refused[key]

    def name_is_free(self, namespace: str, name: str) -> list[Key]:
        """Allow retries for a name that is free now. Returns the jobs that needed the name."""
        of_namespace = ((key, of_job) for key, of_job in self._refused.items() if key[0] == namespace)
        waiting = {key: of_job for key, of_job in of_namespace if name in of_job.set_up.rejections}
        for of_job in waiting.values():
            of_job.set_up.retry_at = 0.0
        return list(waiting)

    def forget(self, key: Key) -> None:
        """Forget the job, which no longer exists."""
        self._refused.pop(key, None)


def name_of(action: Action) -> str:
    """The name of the object that an action is about."""
    if isinstance(action, DeletePods):
        return "of all attempts" if action.attempt is None else f"of attempt {action.attempt}"
    return action.name
