"""Own writes that the watch has not shown yet.

A reconcile soon after a write sees a cache from before it. So what was sent is remembered until the watch shows it, and is
not sent again. While a creation has not shown, nothing is created at all: a pod of an earlier attempt may still appear.
What does not show in time may not have happened (the answer was lost), so it is then looked up past the caches.
"""

import time
from collections.abc import Callable, Collection, Iterable

from ddpjob_operator.core.actions import Action, CreateObject, CreatePod, DeleteObject, DeletePod, DeletePods
from ddpjob_operator.core.model import Observed
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.keys import Key

#: A watch event follows its write by milliseconds; an API server under load takes a second or two.
DEADLINE_SECONDS = 5.0


class Expectations:
    """Creations by name and deletions by uid, for each job."""

    def __init__(self, memories: JobMemories) -> None:
        self._memories = memories

    def sent(self, key: Key, action: CreatePod | CreateObject | DeletePod | DeleteObject) -> None:
        """Expect the effect of an action. Call this before the request, since the watch may show its effect before the answer."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        if isinstance(action, DeletePod | DeleteObject):
            self._memories.of(key).deletions[action.uid] = deadline
        else:
            self._memories.of(key).creations[action.name] = deadline

    def failed(self, key: Key, action: CreatePod | CreateObject | DeletePod | DeleteObject) -> None:
        """Expect nothing of this action, which the server has refused."""
        if isinstance(action, DeletePod | DeleteObject):
            self._memories.of(key).deletions.pop(action.uid, None)
        else:
            self._memories.of(key).creations.pop(action.name, None)

    def doubt(self, key: Key, action: CreatePod | CreateObject) -> None:
        """Require a lookup before anything else is created: no answer came, so the object may exist."""
        self._memories.of(key).creations[action.name] = time.monotonic()

    def settle(self, key: Key, observed: Observed) -> None:
        """Remove the expectations whose effects the caches show."""
        present = {pod.name for pod in observed.pods}
        if observed.service is not None and observed.service.job_uid == observed.job.uid:  # not that of a job before it
            present.add(observed.service.name)
        present |= {found.name for found in observed.objects if found.job_uid == observed.job.uid}
        alive = {pod.uid for pod in observed.pods if pod.deletion is None}
        alive |= {found.uid for found in observed.objects if not found.deleting}
        memory = self._memories.of(key)
        _keep(memory.creations, lambda name: name not in present)
        _keep(memory.deletions, lambda uid: uid in alive)

    def open_actions(self, key: Key, actions: Iterable[Action]) -> tuple[Action, ...]:
        """Those of the actions that may be sent now."""
        creations, deletions = self._memories.of(key).creations, self._memories.of(key).deletions
        return tuple(
            action
            for action in actions
            if not (isinstance(action, CreatePod | CreateObject) and creations)
            and not (isinstance(action, DeletePod | DeleteObject) and action.uid in deletions)
            and not (isinstance(action, DeletePods) and deletions)
        )

    def created(self, key: Key) -> Collection[str]:
        """Names of what was created and has not shown."""
        return self._memories.of(key).creations.keys()

    def seconds_left(self, key: Key) -> float | None:
        """Time until the first deadline, not above zero once it has passed; None if nothing is expected."""
        memory = self._memories.of(key)
        deadlines = [*memory.creations.values(), *memory.deletions.values()]
        return min(deadlines) - time.monotonic() if deadlines else None

    def meet_all(self, key: Key) -> None:
        """Expect nothing any more: the server's latest state has been read."""
        self._memories.of(key).creations.clear()
        self._memories.of(key).deletions.clear()


def _keep(expected: dict[str, float], unmet: Callable[[str], bool]) -> None:
    for token in [token for token in expected if not unmet(token)]:
        del expected[token]
