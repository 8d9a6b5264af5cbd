"""With restart.inPlace, a lost pod is replaced in its attempt while the others wait; each case of doubt restarts the gang."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import LABEL_REPLACEMENT, LABEL_SUPERVISED, Phase, Reason, contract
from ddpjob_operator.api.status import Progress, ReplacedPod
from ddpjob_operator.core.actions import CreatePod, DeletePod, PatchObject
from ddpjob_operator.core.events import events_between
from ddpjob_operator.core.failure.class_of_end import newly_saved_step
from ddpjob_operator.core.failure.restart import MAX_INFRASTRUCTURE_RESTARTS
from ddpjob_operator.core.gang import rank0_of
from ddpjob_operator.core.model import Deletion, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.render.pods import pod_name
from ddpjob_operator.core.render.service import ensure_service, selector
from ddpjob_operator.core.times import rfc3339
from support.builders import (
    NOW,
    created,
    edited,
    ended,
    environment,
    in_attempt,
    job,
    observed,
    pods_created,
    reconciled,
    service,
    supervised,
    updated,
)
from support.gangs_in_place import IN_GANG, IN_PLACE, JOB, KILLED, LATER, after_loss, running_gang, with_pods, without


def test_a_deleted_pod_is_replaced_in_the_same_attempt() -> None:
    made = plan(without(running_gang(), 1), LATER)
    assert made.write_ahead
    assert made.actions == ()
    status = made.status
    assert (status.attempt, status.phase, status.reason) == (1, Phase.RESTARTING, Reason.POD_DELETED)
    assert status.message.endswith("only lost pods are replaced, and the others wait")
    assert [(pod.rank, pod.replacement) for pod in status.replaced_pods] == [(1, 1)]
    assert (status.restarts.infrastructure, status.restarts.counted, status.restarts.pod_replacements) == (1, 0, 1)
    assert [(past.attempt, past.rank, past.replaced) for past in status.attempts] == [(1, 1, True)]


def test_the_successor_of_a_lost_pod_has_a_name_a_label_and_a_variable_of_its_own() -> None:
    (action,) = pods_created(plan(after_loss(), LATER))
    assert action.name == action.body["metadata"]["name"] == "job-1-1-r1"
    labels, variables = action.body["metadata"]["labels"], environment(action.body)
    assert (labels[LABEL_REPLACEMENT], labels[LABEL_SUPERVISED]) == ("1", "true")
    assert (variables[contract.DDPJOB_REPLACEMENTS], variables[contract.NODE_RANK]) == ("1:1", "1")


def test_the_pod_of_rank_0_is_replaced_and_the_service_leads_to_its_successor_first() -> None:
    lost = reconciled(without(running_gang(), 0), LATER)
    assert (lost.job.status.attempt, lost.job.status.replaced_pods[0].rank) == (1, 0)
    to_service, to_pod = plan(lost, LATER).actions
    assert isinstance(to_service, PatchObject)
    assert isinstance(to_pod, CreatePod)
    wanted, labels = to_service.patch["spec"]["selector"], to_pod.body["metadata"]["labels"]
    assert (to_pod.name, labels.items() >= wanted.items()) == ("job-1-0-r1", True)
    assert wanted[LABEL_REPLACEMENT] == "1", "the lost pod is not selected, though it may respond"


def test_the_service_never_leads_back_to_a_pod_that_was_replaced() -> None:
    """An operator with an old view: its status does not name the replacement."""
    ahead = replace(service(JOB), selector=selector(JOB.uid, 1, 1))
    made = plan(replace(running_gang(), service=ahead), LATER)
    assert not [action for action in made.actions if isinstance(action, PatchObject)]
    following = in_attempt(JOB, 2)
    (patch,) = ensure_service(following, JOB.spec, ahead)
    assert patch.patch["spec"]["selector"] == selector(JOB.uid, 2) | {LABEL_REPLACEMENT: None}


def test_the_successor_of_rank_0_knows_of_all_pods_that_were_replaced_since_the_store_that_did_is_gone() -> None:
    before = after_loss()
    back = reconciled(with_pods(before, supervised(before.job, 1)), LATER + 5)
    back = updated(back, progress=Progress(step=9, joined_replacements=1))
    lost = reconciled(without(back, 0), LATER + 400)
    (action,) = pods_created(plan(lost, LATER + 400))
    variables = environment(action.body)
    assert variables[contract.DDPJOB_REPLACEMENTS] == "0:1,1:1"


def test_progress_is_that_of_the_current_pod_of_rank_0() -> None:
    """The lost one stays as evidence."""
    seen = reconciled(with_pods(running_gang(), ended(JOB, 0, **KILLED)), LATER)
    assert rank0_of(seen.pods, seen.job.status) is None
    both = with_pods(seen, supervised(seen.job, 0))
    assert rank0_of(both.pods, both.job.status).name == "job-1-0-r1"


def test_a_step_that_a_lost_pod_of_rank_0_saved_when_it_stopped_explains_no_later_end() -> None:
    drained = ended(JOB, 0, code=75, message="checkpointStep=40", disruption="EvictionByEvictionAPI", **IN_GANG)
    seen = reconciled(with_pods(running_gang(), drained), LATER)
    assert (seen.job.status.attempt, seen.job.status.attempts[-1].checkpoint_step) == (1, 40)
    assert newly_saved_step(seen, 1) is None


def test_the_attempt_runs_again_once_it_runs() -> None:
    lost = after_loss()
    seen = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 5)
    assert seen.job.status.phase == Phase.RUNNING
    assert "all 3 pods run in attempt 1. Before: Rank 1 (pod job-1-1) was deleted" in seen.job.status.message
    assert plan(seen, LATER + 5).actions == ()
    again = reconciled(updated(without(seen, 1), progress=Progress(step=9)), LATER + 400)
    assert created(plan(again, LATER + 400)) == ["job-1-1-r2"]
    assert again.job.status.restarts.pod_replacements == 2
    assert len(again.job.status.attempts) == 2


def test_no_second_pod_of_a_rank_is_created_while_the_first_may_run() -> None:
    """The cluster marks it with a grace that has passed, and its node responds."""
    terminating = supervised(JOB, 1, deletion=Deletion(deadline=LATER - 1))
    seen = reconciled(with_pods(running_gang(), terminating), LATER)
    assert seen.job.status.replaced_pods
    assert created(plan(seen, LATER)) == []
    lost = replace(seen, nodes_gone=frozenset({terminating.node}))
    assert created(plan(lost, LATER + 10)) == ["job-1-1-r1"]


def test_a_pod_whose_main_process_was_killed_stays_as_evidence() -> None:
    seen = reconciled(with_pods(running_gang(), ended(JOB, 1, **KILLED)), LATER)
    made = plan(seen, LATER)
    assert created(made) == ["job-1-1-r1"]
    assert [type(action) for action in made.actions] == [CreatePod]
    assert (made.status.restarts.counted, made.status.restarts.infrastructure) == (1, 0)


@pytest.mark.parametrize(("num_kept", "removed"), [(2, ["job-1-1", "job-1-1-r1"]), (0, None)])
def test_of_each_rank_as_many_replaced_pods_are_kept_as_attempts(num_kept, removed) -> None:
    """An attempt of weeks may lose hundreds of pods, of which the kubelet that evicts them keeps the objects."""
    of = job(nodes=3, restart={**IN_PLACE, "keepAttempts": num_kept})
    seen = updated(running_gang(of), replaced_pods=[ReplacedPod(rank=1, replacement=4)])
    evicted = [
        ended(of, 1, code=137, name=name_of(of, number), uid=name_of(of, number), replacement=number, **IN_GANG)
        for number in range(4)
    ]
    current = [pod for pod in seen.pods if pod.rank != 1]
    there = replace(seen, pods=(*current, *evicted, supervised(seen.job, 1)))
    gone = [action.name for action in plan(there, LATER).actions if isinstance(action, DeletePod)]
    assert gone == (removed or [pod.name for pod in evicted])


def name_of(of, number):
    return pod_name(of.name, 1, 1, number)


def test_the_last_restart_that_is_left_replaces_a_pod() -> None:
    of = job(nodes=3, restart={**IN_PLACE, "maxRestarts": 2})
    status = plan(with_pods(running_gang(of), ended(of, 1, **KILLED)), LATER).status
    assert (status.restarts.counted, [pod.rank for pod in status.replaced_pods]) == (1, [1])


def test_two_lost_pods_are_replaced_together() -> None:
    assert created(plan(reconciled(without(running_gang(), 1, 2), LATER), LATER)) == ["job-1-1-r1", "job-1-2-r1"]


def test_restarts_in_place_for_a_lost_pod_are_not_counted_a_second_time() -> None:
    """Two in the pods before it, and then one of its own."""
    lost = after_loss(replace(running_gang(), progress=Progress(step=5, in_place_restarts=2)))
    assert lost.job.status.restarts.counted == 2
    back = with_pods(replace(lost, progress=Progress(step=50, in_place_restarts=4)), supervised(lost.job, 1))
    back = reconciled(reconciled(back, LATER + 5), LATER + 6)
    failed = plan(with_pods(back, ended(JOB, 0, code=1, ended_seen=LATER + 400)), LATER + 400).status
    assert (failed.attempt, failed.restarts.counted, failed.restarts.in_place_counted) == (2, 4, 0)
    assert failed.replaced_pods == []


def test_a_job_whose_pods_are_lost_again_and_again_without_progress_ends() -> None:
    seen = running_gang()
    many = {"infrastructure_times": [rfc3339(LATER - 1)] * MAX_INFRASTRUCTURE_RESTARTS}
    seen = updated(seen, restarts=seen.job.status.restarts.model_copy(update=many))
    status = plan(without(seen, 1), LATER).status
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.TOO_MANY_INFRASTRUCTURE_RESTARTS)


def failing(*pods, of=JOB):
    return with_pods(running_gang(of), *pods)


NOT_PLACED = Waiting(reason="Unschedulable", message="0/3 nodes are available")
DOUBTS = {
    "nobody is left who has the state": without(running_gang(), 0, 1, 2),
    "pods of an older release": replace(
        without(running_gang(), 1),
        pods=tuple(replace(pod, is_supervised=False) for pod in without(running_gang(), 1).pods),
    ),
    "another pod is being deleted": without(failing(supervised(JOB, 2, deletion=Deletion(deadline=LATER + 30))), 1),
    "another pod is about to be evicted": without(failing(supervised(JOB, 2, disruption="EvictionByEvictionAPI: ")), 1),
    "another rank has succeeded": without(failing(ended(JOB, 2, is_supervised=True)), 1),
    "the launcher has crashed": failing(ended(JOB, 1, **{**KILLED, "code": 139})),
    "another launcher has ended": without(failing(ended(JOB, 2, code=69, is_supervised=True)), 1),
    "the launcher has given up": failing(ended(JOB, 1, message="rank 1\nkilled by SIGKILL", **KILLED)),
    "the program has failed": failing(ended(JOB, 1, code=1, message="rank 1\nValueError: boom", is_supervised=True)),
    "the gang has never run": without(updated(running_gang(), running_since=None), 1, 2),
    "restart.inPlace is off": edited(
        without(running_gang(), 1), restart=JOB.spec.restart.model_copy(update={"in_place": False})
    ),
    "no restart in place is left for the new pod": failing(
        ended(JOB, 1, **KILLED), of=job(nodes=3, restart={**IN_PLACE, "maxRestarts": 1})
    ),
    "a rule for its exit code": failing(
        ended(JOB, 1, **KILLED),
        of=job(nodes=3, restart={**IN_PLACE, "rules": [{"exitCodes": [137], "action": "Ignore"}]}),
    ),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_in_doubt_the_whole_gang_restarts(doubt) -> None:
    status = reconciled(reconciled(DOUBTS[doubt], LATER), LATER + 2).job.status
    assert (status.attempt, status.replaced_pods) == (2, [])
    assert not status.failure.replaced


@pytest.mark.parametrize("rank", [0, 2])
def test_a_pod_that_is_lost_before_the_successor_of_another_runs_is_not_created_again_in_the_same_attempt(rank) -> None:
    """Two nodes are often drained at the same time."""
    made = plan(without(after_loss(), rank), LATER + 1)
    assert (made.status.attempt, created(made)) == (2, [])


def test_a_successor_that_is_lost_is_not_created_again_in_the_same_attempt() -> None:
    lost = after_loss()
    assert created(plan(lost, LATER + 1)) == ["job-1-1-r1"], "it has not been created yet"
    gone = replace(lost, vanished=(supervised(lost.job, 1),))
    assert plan(gone, LATER + 1).status.attempt == 2


OF_TWO = job(nodes=2, restart=IN_PLACE)


@pytest.mark.parametrize(("has_joined", "attempt"), [(False, 2), (True, 1)])
def test_a_new_pod_that_has_not_joined_is_no_survivor(has_joined, attempt) -> None:
    """Of two nodes one is drained after the other. Both new pods would wait for ranks that have a state."""
    lost = reconciled(without(running_gang(OF_TWO), 1), LATER)
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 5)
    reported = Progress(step=90, joined_replacements=1 if has_joined else None)
    again = plan(replace(without(back, 0), progress=reported), LATER + 8).status
    assert (again.attempt, [pod.rank for pod in again.replaced_pods]) == (attempt, [0, 1] if has_joined else [])


@pytest.mark.parametrize(("rank", "num_joined", "attempt"), [(2, None, 2), (2, 1, 1), (1, None, 1)])
def test_only_ranks_that_have_joined_are_waited_for_by_a_further_new_pod(rank, num_joined, attempt) -> None:
    """The others of three have the state. A rank whose new pod is lost again does not wait for itself."""
    lost = after_loss()
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 5)
    back = replace(back, progress=Progress(step=90, joined_replacements=num_joined))
    status = plan(without(back, rank), LATER + 20).status
    assert (status.attempt, status.restarts.in_place_counted) == (attempt, 2 if attempt == 1 else 0)


def test_what_was_reported_of_new_pods_ends_with_the_attempt_and_not_with_a_line_that_omits_it() -> None:
    lost = after_loss()
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 5)
    back = reconciled(replace(back, progress=Progress(step=90, joined_replacements=1)), LATER + 20)
    later = reconciled(replace(back, progress=Progress(step=95)), LATER + 30)
    assert later.job.status.progress.joined_replacements == 1
    failed = plan(with_pods(later, ended(JOB, 0, code=1, ended_seen=LATER + 400)), LATER + 400).status
    assert (failed.attempt, failed.progress.joined_replacements) == (2, None)


def test_a_pod_that_was_replaced_twice_has_joined_only_with_its_newest_pod() -> None:
    lost = after_loss()
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 5)
    again = reconciled(updated(without(back, 1), progress=Progress(step=9, joined_replacements=1)), LATER + 20)
    back = reconciled(with_pods(again, supervised(again.job, 1)), LATER + 25)
    assert plan(without(back, 2), LATER + 400).status.attempt == 2


EVICTED: dict[str, Any] = {
    "is_supervised": True,
    "phase": "Failed",
    "running": False,
    "reason": "Evicted",
    "ended_seen": LATER,
}


def test_pods_that_were_replaced_together_explain_no_later_end() -> None:
    """Only one of them is in the record of their loss."""
    of = job(nodes=4, restart=IN_PLACE)
    gone = [ended(of, rank, code=137, **EVICTED) for rank in (1, 2)]
    lost = reconciled(with_pods(running_gang(of), *gone), LATER)
    assert [pod.rank for pod in lost.job.status.replaced_pods] == [1, 2]
    new = [supervised(lost.job, rank) for rank in (1, 2)]
    back = reconciled(with_pods(lost, *new), LATER + 5)
    back = reconciled(replace(back, progress=Progress(step=90, joined_replacements=2)), LATER + 20)
    ends = [ended(of, rank, code=69, is_supervised=True, ended_seen=LATER + 7000) for rank in (0, 3)]
    failed = reconciled(with_pods(back, *ends), LATER + 7002)
    assert failed.job.status.failure.reason == Reason.COLLECTIVE_ERROR
    status = plan(failed, LATER + 7003).status
    assert (status.failure.reason, status.restarts.counted) == (Reason.COLLECTIVE_ERROR, 1)


def test_what_an_earlier_pod_of_rank_0_saved_is_no_step_of_a_later_stop() -> None:
    """Ten other losses later its record is gone."""
    drained = ended(JOB, 0, code=75, message="checkpointStep=40", disruption="EvictionByEvictionAPI", **IN_GANG)
    lost = reconciled(with_pods(running_gang(), drained), LATER)
    back = with_pods(updated(lost, attempts=[]), supervised(lost.job, 0))
    assert newly_saved_step(back, 1) is None


@pytest.mark.parametrize("edit", [{"in_place": False}, {"max_restarts": 0}])
def test_a_new_pod_waits_as_the_others_do_whatever_was_edited_meanwhile(edit) -> None:
    lost = after_loss()
    lost = edited(lost, restart=JOB.spec.restart.model_copy(update=edit))
    (action,) = pods_created(plan(lost, LATER))
    variables = environment(action.body)
    assert action.body["metadata"]["labels"][LABEL_SUPERVISED] == "true"
    assert contract.DDPJOB_REPLACEMENT_SECONDS in variables
    assert int(variables[contract.DDPJOB_IN_PLACE_RESTARTS]) > 0


def test_a_restart_in_place_before_the_loss_does_not_count_as_that_with_the_new_pod() -> None:
    """A rank failed in its pod, and a pod was lost before rank 0's log was read: the next read shows one restart in place."""
    lost = reconciled(without(running_gang(OF_TWO), 1), LATER)
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 5)
    status = plan(replace(without(back, 0), progress=Progress(step=90, in_place_restarts=1)), LATER + 8).status
    assert (status.attempt, status.replaced_pods) == (2, [])


def test_a_new_pod_that_was_lost_before_it_joined_is_not_expected_to_join_later() -> None:
    lost = after_loss()
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), LATER + 5)
    again = reconciled(updated(without(back, 1), progress=Progress(step=9)), LATER + 20)
    back = reconciled(with_pods(again, supervised(again.job, 1)), LATER + 25)
    reported = Progress(step=90, in_place_restarts=1, joined_replacements=2)
    status = plan(replace(without(back, 2), progress=reported), LATER + 400).status
    assert (status.attempt, [(pod.rank, pod.replacement) for pod in status.replaced_pods]) == (1, [(1, 2), (2, 1)])


def test_a_second_loss_without_progress_restarts_the_whole_gang() -> None:
    lost = after_loss(at=NOW + 20)
    back = reconciled(with_pods(lost, supervised(lost.job, 1)), NOW + 25)
    assert reconciled(without(back, 1), NOW + 40).job.status.attempt == 2


@pytest.mark.parametrize("lost", [(1,), (0, 1, 2)], ids=["replaced again", "all are lost"])
def test_each_loss_has_an_event_although_one_of_its_class_in_the_same_attempt_had_one(lost) -> None:
    before = after_loss()
    back = reconciled(with_pods(before, supervised(before.job, 1)), LATER + 5)
    back = updated(back, progress=Progress(step=9))
    status = plan(without(back, *lost), LATER + 400).status
    assert status.attempt == (1 if lost == (1,) else 2)
    (notice,) = events_between(back.job.status, status)
    assert (notice.type, notice.reason) == ("Warning", Reason.POD_DELETED)


def test_a_replaced_pod_that_finds_no_node_gives_the_nodes_of_all_back() -> None:
    lost = after_loss()
    seen = reconciled(
        with_pods(lost, replace(supervised(lost.job, 1), node=None, running=False, waiting=NOT_PLACED)), LATER + 1
    )
    assert seen.job.status.attempt == 1
    assert plan(seen, LATER + 100).status.attempt == 2


def test_pods_of_jobs_that_do_not_wait_have_no_label() -> None:
    for of in (
        job(nodes=3),
        job(nodes=1, restart=IN_PLACE),
        job(nodes=2, restart=IN_PLACE, command=["torchrun", "x.py"]),
    ):
        made = plan(reconciled(observed(of)), NOW)
        bodies = [action.body for action in pods_created(made)]
        assert bodies
        assert not any(LABEL_SUPERVISED in body["metadata"]["labels"] for body in bodies)
        assert not any(contract.DDPJOB_REPLACEMENT_SECONDS in str(body) for body in bodies)
