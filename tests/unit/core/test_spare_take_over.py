"""A spare pod becomes the pod of a lost rank, or why it does not."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.api.names import Phase, Reason, contract
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.actions import PatchObject
from ddpjob_operator.core.model import POD, Deletion, Rejection
from ddpjob_operator.core.plan import plan
from support.builders import (
    NOW,
    changed,
    created,
    edited,
    ended,
    environment,
    job,
    observed,
    pods_created,
    reconciled,
    updated,
)
from support.gangs_in_place import KILLED, LATER
from support.gangs_with_spares import JOB, RESTART, after_loss, deletions, gang, spare, taken_over, without_spares


def test_a_spare_pod_replaces_a_lost_pod_and_another_spare_pod_follows() -> None:
    seen = after_loss(1)
    assert [(pod.rank, pod.replacement, pod.spare) for pod in seen.job.status.replaced_pods] == [
        (1, 1, "job-1-spare0-0")
    ]
    assert seen.job.status.restarts.pod_replacements == 1
    made = plan(seen, LATER)
    (patch,) = made.actions
    assert isinstance(patch, PatchObject)
    assert (patch.kind, patch.name, patch.resource_version) == (POD, "job-1-spare0-0", "7")
    metadata = patch.patch["metadata"]
    assert metadata["uid"] == "uid of job-1-spare0-0"
    assert metadata["labels"] == {names.LABEL_SPARE: None, names.LABEL_RANK: "1", names.LABEL_REPLACEMENT: "1"}
    assigned = json.loads(metadata["annotations"][names.ANNOTATION_ASSIGNMENT])
    new_pod = after_loss(1, of=job(nodes=3, restart={**RESTART, "spares": 0}), spares=())
    (action,) = pods_created(plan(new_pod, LATER))
    of_new_pod = environment(action.body)
    assert assigned.items() <= of_new_pod.items()
    assert (assigned[contract.RANK], assigned[contract.DDPJOB_REPLACEMENTS]) == ("1", "1:1")
    now_rank_1 = spare(is_spare=False, rank=1, replacement=1)
    back = replace(seen, pods=(*(pod for pod in seen.pods if not pod.is_spare), now_rank_1))
    after = plan(back, LATER + 3)
    assert after.status.phase == Phase.RUNNING
    assert created(after) == ["job-1-spare0-1"]


def test_the_variables_of_the_assignment_are_all_that_differ_between_pods_of_an_attempt() -> None:
    seen = after_loss(1, spares=())
    first = next(environment(pod.body) for pod in pods_created(plan(observed(JOB), NOW)) if pod.name.endswith("-0"))
    (new,) = (environment(pod.body) for pod in pods_created(plan(seen, LATER)) if pod.name.endswith("-r1"))
    changed = {name for name in new if new[name] != first.get(name)}
    patch = next(action for action in plan(after_loss(1), LATER).actions if isinstance(action, PatchObject))
    assert changed <= json.loads(patch.patch["metadata"]["annotations"][names.ANNOTATION_ASSIGNMENT]).keys()


def test_two_lost_pods_and_one_spare() -> None:
    seen = after_loss(0, 2)
    assert taken_over(seen) == {0: "job-1-spare0-0"}
    assert created(plan(seen, LATER)) == ["job-1-2-r1"]
    service, *_ = plan(seen, LATER).actions
    assert isinstance(service, PatchObject)
    assert service.kind != POD, "the name of rank 0 leads to its new pod first"


def test_two_spare_pods_replace_two() -> None:
    of = job(nodes=3, restart={**RESTART, "spares": 2})
    seen = after_loss(1, 2, of=of, spares=(spare(of, 1), spare(of, 0)))
    assert taken_over(seen) == {1: "job-1-spare0-0", 2: "job-1-spare1-0"}


def test_a_spare_pod_that_another_operator_named_is_not_lost_because_this_operator_has_not_seen_it_run() -> None:
    """Its watch of pods may be behind that of jobs, and it waits until it has."""
    seen = after_loss(1)
    behind = replace(seen, pods=tuple(changed(pod, running=False) if pod.is_spare else pod for pod in seen.pods))
    made = plan(behind, LATER)
    assert (made.status.attempt, created(made), taken_over(behind)) == (1, [], {})
    assert taken_over(seen) == {1: "job-1-spare0-0"}


NOT_READY: dict[str, dict[str, Any]] = {
    "it still imports": {"is_started": False},
    "it does not run": {"running": False},
    "its node does not respond": {"is_cut_off": True},
    "it is being deleted": {"deletion": Deletion(deadline=LATER + 30)},
    "it is about to be evicted": {"disruption": "EvictionByEvictionAPI: "},
    "it is on the node that took the lost pod away": {"node": "node-1"},
    "it is of an earlier attempt": {"attempt": 0},
}


@pytest.mark.parametrize("why", NOT_READY)
def test_a_new_pod_replaces_the_lost_one_where_the_spare_pod_cannot(why) -> None:
    seen = gang(spares=(spare(**NOT_READY[why]),))
    gone = ended(JOB, 1, code=137, message="", disruption="DeletionByTaintManager: ", is_supervised=True)
    seen = replace(seen, pods=(*(pod for pod in seen.pods if pod.rank != 1), gone))
    after = reconciled(seen, LATER)
    assert [(pod.rank, pod.spare) for pod in after.job.status.replaced_pods] == [(1, None)]
    assert taken_over(after) == {}


def test_a_killed_process_says_nothing_of_its_node() -> None:
    killed = ended(JOB, 1, **KILLED)
    seen = gang(spares=(spare(node=killed.node),))
    seen = replace(seen, pods=(*(pod for pod in seen.pods if pod.rank != 1), killed))
    assert taken_over(reconciled(seen, LATER)) == {1: "job-1-spare0-0"}


@pytest.mark.parametrize(
    "changes",
    [{"running": False, "phase": "Failed"}, {"deletion": Deletion(deadline=LATER + 30)}, {"is_cut_off": True}, None],
)
def test_a_spare_pod_that_is_lost_before_it_has_taken_over_is_a_lost_pod(changes) -> None:
    """No other pod gets this replacement: its number tells pods of one rank apart."""
    seen = after_loss(1)
    left = () if changes is None else (spare(**changes),)
    seen = replace(seen, pods=(*(pod for pod in seen.pods if not pod.is_spare), *left))
    made = plan(seen, LATER + 1)
    assert (created(made), taken_over(seen)) == ([], {})
    assert (made.status.attempt, made.status.failure.rank) == (2, 1)
    assert (made.status.failure.reason == Reason.NODE_LOST) == ("is_cut_off" in (changes or ()))


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_spare_pod_that_ended_before_it_took_over_is_not_called_deleted_and_is_no_error_of_the_spec(is_gone) -> None:
    """With exit code 2 the trainer says that the spec is wrong, but the others of its attempt have trained with it."""
    of_spare: dict[str, Any] = {
        "name": "job-1-spare0-0",
        "uid": "s",
        "is_spare": True,
        "is_supervised": True,
        "node": "spare-0",
    }
    failed = ended(JOB, 3, code=2, message="no such option", **of_spare)
    seen = without_spares(after_loss(1))
    seen = replace(seen, vanished=(failed,)) if is_gone else replace(seen, pods=(*seen.pods, failed))
    made = plan(seen, LATER + 1).status
    failure = made.failure
    assert (made.attempt, made.phase, failure.rank, failure.node) == (2, Phase.RESTARTING, 1, "spare-0")
    text = "the spare pod had exit code 2 before it took over: no such option"
    assert (failure.reason, failure.message) == (Reason.PROGRAM_ERROR, text)


def test_a_rule_for_exit_codes_is_not_about_one_that_never_trained() -> None:
    of = job(nodes=3, restart={**RESTART, "rules": [{"exitCodes": [3], "action": "Fail"}]})
    of_spare: dict[str, Any] = {
        "name": "job-1-spare0-0",
        "uid": "s",
        "is_spare": True,
        "is_supervised": True,
        "node": "spare-0",
    }
    seen = without_spares(after_loss(1, of=of))
    failed = ended(of, 3, code=3, message="x", **of_spare)
    assert plan(replace(seen, pods=(*seen.pods, failed)), LATER + 1).status.phase == Phase.RESTARTING


REFUSED: dict[str, Any] = {
    "running": False,
    "is_started": False,
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": "Allocate failed",
}


def test_a_spare_pod_that_its_kubelet_refused_meanwhile_is_not_called_deleted() -> None:
    seen = without_spares(after_loss(1))
    failure = plan(replace(seen, pods=(*seen.pods, spare(**REFUSED))), LATER + 1).status.failure
    assert (failure.reason, failure.message) == (Reason.POD_DISRUPTED, "UnexpectedAdmissionError: Allocate failed")


def test_a_spare_pod_whose_kubelet_has_to_probe_it_again_is_not_lost() -> None:
    """After a restart of the kubelet no container counts as started until its probe succeeds."""
    seen = without_spares(after_loss(1))
    assert plan(replace(seen, pods=(*seen.pods, spare(is_started=False))), LATER + 1).status.attempt == 1


def test_a_spare_pod_that_is_being_deleted_for_a_lower_number_replaces_nothing() -> None:
    """Its deletion may be under way although no watch shows it."""
    fewer = edited(gang(spares=(spare(),)), restart=JOB.spec.restart.model_copy(update={"spares": 0}))
    assert deletions(fewer) == ["job-1-spare0-0"]
    lost = replace(fewer, pods=tuple(pod for pod in fewer.pods if pod.rank != 1))
    made = plan(lost, LATER)
    assert [(pod.rank, pod.spare) for pod in made.status.replaced_pods] == [(1, None)]


@pytest.mark.parametrize("limits", [{"queueSeconds": 120}, {}])
@pytest.mark.parametrize("least", [None, 2])
def test_while_it_may_not_take_over_the_gang_has_all_its_nodes_and_waits(limits, least) -> None:
    """The ranks that wait end after a while. The job neither fails nor releases nodes nor continues on fewer."""
    of = job(nodes=3, restart=RESTART, deadlines=limits, **({"minNodes": least} if least else {}))
    refused = Rejection(message="webhook: refused", request="update Pod", by_failure=True, since=LATER + 1)
    seen = replace(after_loss(1, of=of), rejections={"job-1-spare0-0": refused})
    seen = reconciled(updated(seen, active_seconds_before=600000), LATER + 1)
    for seconds in (60, 125, 250):
        made = plan(seen, LATER + seconds).status
        assert (made.attempt, made.reason) == (1, Reason.POD_REJECTED), made.message


@pytest.mark.parametrize(("rank", "num_joined", "attempt"), [(2, None, 2), (2, 1, 1), (1, None, 1)])
def test_the_loss_of_another_pod_restarts_the_gang_until_the_spare_pod_has_joined(rank, num_joined, attempt) -> None:
    """It runs all the time, so that nothing else says whether it has read its assignment."""
    seen = reconciled(after_loss(1), LATER)
    taken = changed(spare(), is_spare=False, rank=1, replacement=1)
    back = reconciled(replace(seen, pods=(*without_spares(seen).pods, taken)), LATER + 5)
    back = replace(back, progress=Progress(step=90, joined_replacements=num_joined))
    lost = replace(back, pods=tuple(pod for pod in back.pods if pod.rank != rank))
    assert plan(lost, LATER + 20).status.attempt == attempt
