"""A gang of three whose lost pods are replaced while the others wait, for tests."""

from dataclasses import replace
from typing import Any

from ddpjob_operator.core.model import Job, Observed, Pod
from support.builders import NOW, job, observed, reconciled, supervised

IN_PLACE: dict[str, Any] = {"inPlace": True, "maxRestarts": 9}
JOB = job(nodes=3, restart=IN_PLACE)
#: Long enough for an attempt to be healthy, after which there is no back-off.
LATER = NOW + 400
IN_GANG: dict[str, Any] = {"is_supervised": True, "ended_seen": LATER}
KILLED: dict[str, Any] = {"code": 137, **IN_GANG}


def running_gang(of: Job = JOB) -> Observed:
    """All ranks run."""
    assert of.spec is not None, "builders make valid jobs"
    return reconciled(observed(of, *(supervised(of, rank) for rank in range(of.spec.nodes))))


def without(seen: Observed, *ranks: int) -> Observed:
    """The pods of these ranks are gone."""
    return replace(seen, pods=tuple(pod for pod in seen.pods if pod.rank not in ranks))


def with_pods(seen: Observed, *pods: Pod) -> Observed:
    """These pods instead of those of the same name."""
    names = {pod.name for pod in pods}
    return replace(seen, pods=(*(pod for pod in seen.pods if pod.name not in names), *pods))


def after_loss(seen: Observed | None = None, at: float = LATER) -> Observed:
    """Rank 1 was lost, and the status says so."""
    return reconciled(without(seen or running_gang(), 1), at)
