"""Own writes that the watch has not shown yet.

A reconcile soon after a write sees a cache from before it. So what was sent is remembered until the watch shows it, and is
not sent again. While a creation has not shown, nothing is created at all: a pod of an earlier attempt may still appear.
What does not show in time may not have happened (the answer was lost), so it is then looked up past the caches.
"""

import time
from collections.abc import Callable, Iterable

from ddpjob_operator.core.model import Action, CreatePod, CreateService, DeletePod, DeletePods, Observed
from ddpjob_operator.kube.keys import Key

#: A watch event follows its write by milliseconds; an API server under load takes a second or two.
DEADLINE_SECONDS = 5.0


class Expectations:
    """Creations by name and deletions by uid, for each job."""

    def __init__(self) -> None:
        self._creations: dict[Key, dict[str, float]] = {}
        self._deletions: dict[Key, dict[str, float]] = {}

    def sent(self, key: Key, action: CreatePod | CreateService | DeletePod) -> None:
        """To be called before the request: its effect may show before its answer comes."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        if isinstance(action, DeletePod):
            self._deletions.setdefault(key, {})[action.uid] = deadline
        else:
            self._creations.setdefault(key, {})[action.name] = deadline

    def failed(self, key: Key, action: CreatePod | CreateService | DeletePod) -> None:
        """The server has refused it, so there is nothing to wait for."""
        if isinstance(action, DeletePod):
            self._deletions.get(key, {}).pop(action.uid, None)
        else:
            self._creations.get(key, {}).pop(action.name, None)

    def doubt(self, key: Key, action: CreatePod | CreateService) -> None:
        """No answer came: whether it exists must be looked up before anything else is created."""
        self._creations.setdefault(key, {})[action.name] = time.monotonic()

    def settle(self, key: Key, seen: Observed) -> None:
        """Remove what the caches show."""
        present = {pod.name for pod in seen.pods}
        if seen.service is not None and seen.service.job_uid == seen.job.uid:  # not that of a job before it
            present.add(seen.service.name)
        alive = {pod.uid for pod in seen.pods if pod.deletion is None}
        _keep(self._creations, key, lambda name: name not in present)
        _keep(self._deletions, key, lambda uid: uid in alive)

    def open_actions(self, key: Key, actions: Iterable[Action]) -> tuple[Action, ...]:
        """Those of the actions that may be sent now."""
        creations, deletions = self._creations.get(key, {}), self._deletions.get(key, {})
        return tuple(
            action
            for action in actions
            if not (isinstance(action, CreatePod | CreateService) and creations)
            and not (isinstance(action, DeletePod) and action.uid in deletions)
            and not (isinstance(action, DeletePods) and deletions)
        )

    def seconds_left(self, key: Key) -> float | None:
        """Time until the first deadline, not above zero once it has passed; None if nothing is expected."""
        deadlines = [*self._creations.get(key, {}).values(), *self._deletions.get(key, {}).values()]
        return min(deadlines) - time.monotonic() if deadlines else None

    def forget(self, key: Key) -> None:
        """Expect nothing any more: the server's latest state has been read, or the job is gone."""
        self._creations.pop(key, None)
        self._deletions.pop(key, None)


def _keep(expected: dict[Key, dict[str, float]], key: Key, unmet: Callable[[str], bool]) -> None:
    if key in expected:
        left = {token: deadline for token, deadline in expected[key].items() if unmet(token)}
        if left:
            expected[key] = left
        else:
            del expected[key]
