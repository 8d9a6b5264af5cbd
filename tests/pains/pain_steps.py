"""Steps in a job's life as the tests of the pains take them: a plan carried out, a pod as a kubelet reports it."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders import NOW, observed, pod, with_status
from ddpjob_operator.core.model import CreatePod, Job, Observed, Plan, Pod
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import pod_of
from ddpjob_operator.core.render.pods import create_pod
from ddpjob_operator.core.times import epoch_seconds

ROOT = Path(__file__).parents[2]
IMAGE = "users/train:1"


def written(seen: Observed, now: float = NOW) -> Observed:
    """The same once the status that the plan asks for is written."""
    return with_status(seen, plan(seen, now).status)


def survivors_gone(seen: Observed) -> Observed:
    """The same once the pods that had not ended are deleted."""
    return replace(seen, pods=tuple(p for p in seen.pods if p.all_ended))


def whole(seen: Observed, now: float) -> Observed:
    """The job with all pods of its current attempt running, after whatever time it must wait for them."""
    of = seen.job
    assert of.spec is not None, "builders make valid jobs"
    new = tuple(pod(of, rank, of.status.attempt) for rank in range(of.spec.nodes))
    return written(observed(of, *survivors_gone(seen).pods, *new), now)


def may_start_at(of: Job, now: float) -> float:
    """When the current attempt's pods may be created, which is later than now for a job that backs off."""
    return max(now, epoch_seconds(of.status.retry_time)) if of.status.retry_time else now


def rendered(of: Job, rank: int = 0, image: str = IMAGE) -> dict[str, Any]:
    """The pod that is created for this rank, as JSON."""
    assert of.spec is not None, "builders make valid jobs"
    return copy.deepcopy(dict(create_pod(of, of.spec, image, rank).body))


def environment(body: Mapping[str, Any]) -> dict[str, str]:
    """The variables of the main container that have a plain value."""
    (main,) = (container for container in body["spec"]["containers"] if container["name"] == "trainer")
    return {variable["name"]: variable["value"] for variable in main["env"] if "value" in variable}


def reported(of: Job, rank: int, *, phase: str = "Running", injected: Iterable[str] = (), **states: Any) -> Pod:
    """The rendered pod as its kubelet reports it, with the state of each container by name.

    `injected` are containers that admission has added in front of ours, as service meshes do.
    """
    body = rendered(of, rank)
    body["metadata"]["uid"] = f"pod-uid-{of.status.attempt}-{rank}"
    body["spec"]["nodeName"] = f"node-{rank}"
    body["spec"]["containers"] = [*({"name": name} for name in injected), *body["spec"]["containers"]]
    names = [container["name"] for container in body["spec"]["containers"]]
    statuses = [{"name": name, "state": states[name.replace("-", "_")]} for name in names]
    return pod_of({**body, "status": {"phase": phase, "containerStatuses": statuses}})


def bodies(made: Plan) -> dict[str, Mapping[str, Any]]:
    """The pods that a plan creates, by name."""
    return {action.name: action.body for action in made.actions if isinstance(action, CreatePod)}
