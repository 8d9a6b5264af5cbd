"""A job that an older release gave spare pods: they are removed, and the gang goes on in its attempt."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.api.status import ReplacedPod
from ddpjob_operator.core.actions import CreatePod, DeletePod
from ddpjob_operator.core.model import Observed, Pod
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import pod_of
from ddpjob_operator.core.render.pods import create_pod
from support.builders import NOW, changed, job, observed, reconciled, supervised
from support.gangs_in_place import IN_PLACE, LATER, with_pods, without

JOB = job(nodes=3, restart={**IN_PLACE, "spares": 1})
NAME = "job-1-spare0-0"


def spare() -> Pod:
    """A spare pod that waits, as the API server shows it."""
    assert JOB.spec is not None
    body: dict[str, Any] = dict(create_pod(JOB, JOB.spec, "image", JOB.spec.nodes).body)
    body["metadata"] |= {"name": NAME, "uid": "uid of the spare pod", "resourceVersion": "7"}
    body["metadata"]["labels"][names.LABEL_SPARE] = "true"
    body["spec"]["nodeName"] = "spare-node"
    state = {"name": names.MAIN_CONTAINER, "started": True, "state": {"running": {}}}
    return pod_of({**body, "status": {"phase": "Running", "containerStatuses": [state]}})


def gang(*more: Pod) -> Observed:
    """All ranks run."""
    return reconciled(observed(JOB, *(supervised(JOB, rank) for rank in range(3)), *more))


def after_loss_of_rank_1(seen: Observed) -> Observed:
    """The older release has named the spare pod in the status, and has not given it the rank yet."""
    lost = reconciled(without(seen, 1), LATER)
    named = [ReplacedPod(rank=1, replacement=1, spare=NAME)]
    status = lost.job.status.model_copy(update={"replaced_pods": named})
    return replace(lost, job=replace(lost.job, status=status))


def test_the_spare_pod_of_a_running_gang_is_removed_and_the_gang_runs_on() -> None:
    made = plan(with_pods(gang(), spare()), NOW)
    assert len(made.actions) == 1
    assert [action.name for action in made.actions if isinstance(action, DeletePod)] == [NAME]
    assert (made.status.phase, made.status.attempt, made.status.replaced_pods) == (Phase.RUNNING, 1, [])
    assert made.status.message.count("restart.spares has no effect") == 1


def test_a_new_pod_replaces_a_lost_one_for_which_the_status_names_a_spare_pod() -> None:
    made = plan(with_pods(after_loss_of_rank_1(gang()), spare()), LATER)
    assert made.status.attempt == 1
    assert [action.name for action in made.actions if isinstance(action, DeletePod)] == [NAME]
    assert [action.name for action in made.actions if isinstance(action, CreatePod)] == ["job-1-1-r1"]


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_spare_pod_that_has_replaced_a_lost_one_is_the_pod_of_its_rank(is_gone: bool) -> None:
    lost = after_loss_of_rank_1(gang())
    second = changed(supervised(lost.job, 1), name=NAME, uid="uid of the spare pod", replacement=1)
    runs = reconciled(with_pods(lost, second), LATER)
    assert (runs.job.status.phase, runs.job.status.attempt) == (Phase.RUNNING, 1)
    evicted = replace(second, disruption="EvictionByEvictionAPI: drained", phase="Failed")
    pods = tuple(pod for pod in runs.pods if pod.name != NAME)
    seen = replace(runs, pods=pods if is_gone else (*pods, evicted), vanished=(evicted,) if is_gone else ())
    failure = plan(seen, LATER + 1).status.failure
    assert failure is not None
    assert (failure.pod, failure.rank, failure.reason) == (NAME, 1, Reason.EVICTED)
