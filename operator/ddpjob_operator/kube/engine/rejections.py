"""What the API server refuses, with its message, and when to retry. A quota or a policy may change, so nothing is refused for good."""

from collections.abc import Collection, Iterable, Mapping

from ddpjob_operator.core.actions import Action, DeletePods, Removal, SetUp
from ddpjob_operator.core.model import Rejection
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.refused import Refused
from ddpjob_operator.kube.keys import Key


class Rejections:
    """By job and name of the object, separately for what sets a gang up and for what stops or deletes something."""

    def __init__(self, memories: JobMemories) -> None:
        self._memories = memories
        #: Jobs that may wait for a retry: each name that becomes free is looked for in all of them.
        self._waiting: set[Key] = set()

    def of(self, key: Key) -> Mapping[str, Rejection]:
        """By name of each object that the server refused to create or to update last."""
        return self._memories.of(key).refused_set_up.rejections

    def are_in(self, namespace: str) -> bool:
        """Whether the server has refused to create or to update something of any job of this namespace last."""
        return any(key[0] == namespace for key, _ in self._refused())

    def removals_of(self, key: Key) -> Mapping[str, Rejection]:
        """By name of each object that the server refused to delete or to stop last."""
        return self._memories.of(key).refused_removals.rejections

    def record(
        self, key: Key, tried: Collection[Action], rejections: Mapping[str, Rejection], *, some_done: bool
    ) -> None:
        """Record a round of requests that ended with these; the next comes later each time, unless some were carried out."""
        memory = self._memories.of(key)
        is_removal = any(isinstance(action, Removal) for action in tried)
        refused = memory.refused_removals if is_removal else memory.refused_set_up
        if rejections and not is_removal:
            self._waiting.add(key)
        refused.record({name_of(action) for action in tried}, rejections, some_done=some_done)

    def due(self, key: Key, actions: Iterable[Action]) -> tuple[Action, ...]:
        """Those of the actions that may be tried now.

        While something of the set-up waits for its retry all of it waits, since a quota refuses one pod after another. Of
        the removals only those wait that were refused.
        """
        set_up, removals = self._memories.of(key).refused_set_up, self._memories.of(key).refused_removals
        waiting = removals.rejections if removals.seconds_to_retry else {}
        return tuple(
            action
            for action in actions
            if not (isinstance(action, SetUp) and set_up.seconds_to_retry)
            and not (isinstance(action, Removal) and name_of(action) in waiting)
        )

    def seconds_to_retry(self, key: Key) -> float:
        """Time until the first of the refused requests may be tried again; 0 if none waits."""
        memory = self._memories.of(key)
        waiting = (memory.refused_set_up.seconds_to_retry, memory.refused_removals.seconds_to_retry)
        return min((seconds for seconds in waiting if seconds), default=0.0)

    def keep_wanted(self, key: Key, actions: Collection[Action]) -> None:
        """Drop requests that are no longer wanted: their effect is there by now, or the plan has changed."""
        memory = self._memories.of(key)
        memory.refused_set_up.keep({name_of(action) for action in actions if isinstance(action, SetUp)})
        memory.refused_removals.keep({name_of(action) for action in actions if isinstance(action, Removal)})

    def name_is_free(self, namespace: str, name: str) -> list[Key]:
        """Allow retries for a name that is free now. Returns the jobs that needed the name."""
        waiting = {
            key: refused for key, refused in self._refused() if key[0] == namespace and name in refused.rejections
        }
        for refused in waiting.values():
            refused.retry_at = 0.0
        return list(waiting)

    def _refused(self) -> list[tuple[Key, Refused]]:
        """What sets a gang up and was refused, by job; jobs of which nothing is refused any more are left out for good."""
        known = ((key, self._memories.known(key)) for key in self._waiting)
        refused = [(key, memory.refused_set_up) for key, memory in known if memory and memory.refused_set_up.rejections]
        self._waiting = {key for key, _ in refused}
        return refused


def name_of(action: Action) -> str:
    """The name of the object that an action is about."""
    if isinstance(action, DeletePods):
        return "of all attempts" if action.attempt is None else f"of attempt {action.attempt}"
    return action.name
