"""Gangs with spare pods, and what a plan does to these, for the tests of both."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.core.actions import DeletePod, PatchObject
from ddpjob_operator.core.model import POD, Job, Observed, Pod
from ddpjob_operator.core.plan import plan
from support.builders import NOW, changed, job, observed, reconciled, supervised
from support.gangs_in_place import IN_PLACE, LATER, without

RESTART: dict[str, Any] = {**IN_PLACE, "spares": 1}
JOB = job(nodes=3, restart=RESTART)


def spare(of: Job = JOB, number: int = 0, **changes: Any) -> Pod:
    """A spare pod that can take over."""
    assert of.spec is not None, "builders make valid jobs"
    name = f"job-{of.status.attempt}-spare{number}-0"
    more = {"name": name, "uid": f"uid of {name}", "is_spare": True, "is_started": True, "version": "7"}
    return changed(
        supervised(of, of.spec.nodes + number), **{**more, "placed": NOW, "node": f"spare-{number}", **changes}
    )


def gang(of: Job = JOB, spares: Sequence[Pod] = (), lost: Sequence[int] = ()) -> Observed:
    """A running gang with these spare pods and without these ranks."""
    assert of.spec is not None, "builders make valid jobs"
    return without(reconciled(observed(of, *(supervised(of, rank) for rank in range(of.spec.nodes)), *spares)), *lost)


def after_loss(*lost: int, of: Job = JOB, spares: Sequence[Pod] | None = None) -> Observed:
    """Ranks were lost, and the status says who replaces them."""
    return reconciled(gang(of, (spare(of),) if spares is None else spares, lost), LATER)


def without_spares(seen: Observed) -> Observed:
    """The same without them."""
    return replace(seen, pods=tuple(pod for pod in seen.pods if not pod.is_spare))


def taken_over(seen: Observed) -> dict[int, str]:
    """By rank the name of the spare pod that the plan makes its pod."""
    patches = [action for action in plan(seen, LATER).actions if isinstance(action, PatchObject) and action.kind == POD]
    return {int(patch.patch["metadata"]["labels"][names.LABEL_RANK]): patch.name for patch in patches}


def deletions(seen: Observed, now: float = LATER) -> list[str]:
    """The names of the pods that the plan deletes."""
    return [action.name for action in plan(seen, now).actions if isinstance(action, DeletePod)]
