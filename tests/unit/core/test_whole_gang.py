"""All pods of an attempt start and end together."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import ConditionType, Phase
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.actions import CreateObject, CreatePod, PatchObject, ReadLog
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.model import NO_LOG
from ddpjob_operator.core.plan import plan
from support.builders import NOW, created, ended, job, observed, pod, pods_created, program, reconciled, running

PAIR = job(nodes=2)


def image_of(action: CreatePod) -> str:
    return action.body["spec"]["containers"][0]["image"]


def test_the_service_is_created_before_the_pods_and_nothing_is_written_before_them() -> None:
    made = plan(observed(PAIR, service=None), NOW)
    assert [type(action) for action in made.actions] == [CreateObject, CreatePod, CreatePod]
    assert (made.write_ahead, created(made)) == (False, ["job-1-0", "job-1-1"])


def test_the_condition_created_is_true_once_all_pods_exist() -> None:
    some = plan(observed(PAIR, pod(PAIR, 0)), NOW).status
    both = plan(observed(PAIR, pod(PAIR, 0), pod(PAIR, 1)), NOW).status
    done = plan(observed(PAIR, ended(PAIR, 0), ended(PAIR, 1), logs={"pod-uid-1-0": NO_LOG}), NOW).status
    assert [bool(status.condition(ConditionType.CREATED)) for status in (some, both, done)] == [False, True, True]
    assert done.phase == Phase.SUCCEEDED, "all pods had ended before they were first observed"


def test_a_job_runs_once_every_rank_runs() -> None:
    one = plan(observed(PAIR, pod(PAIR, 0), pod(PAIR, 1, running=False)), NOW).status
    both = plan(observed(PAIR, pod(PAIR, 0), pod(PAIR, 1)), NOW).status
    assert [(status.phase, status.ready) for status in (one, both)] == [(Phase.PENDING, "1/2"), (Phase.RUNNING, "2/2")]
    assert [(status.ready_replicas, status.replicas) for status in (one, both)] == [(1, 2), (2, 2)]
    assert both.selector == f"ddpjob.dev/job-uid={PAIR.uid}"


def test_the_default_image_of_the_first_attempt_stays_that_of_the_job() -> None:
    assert plan(observed(job(image="mine:2")), NOW).status.image is None
    assert plan(observed(job()), NOW).status.image == "trainer:1"

    upgraded = replace(reconciled(observed(job())), trainer_image="trainer:2")
    (action,) = pods_created(plan(upgraded, NOW))
    assert image_of(action) == "trainer:1"

    existing = observed(PAIR, pod(PAIR, 0, image="trainer:1"), trainer_image="trainer:2")
    (action,) = pods_created(plan(existing, NOW))
    assert (plan(existing, NOW).status.image, image_of(action)) == ("trainer:1", "trainer:1")


@pytest.mark.parametrize("seen", [running(PAIR), running(job(nodes=1, command=["train"]))])
def test_the_plan_of_the_state_that_a_plan_asked_for_is_empty(seen) -> None:
    made = plan(seen, NOW + 60)
    assert (made.status, made.actions, made.lookups) == (seen.job.status, (), ())


def test_a_changed_service_is_repaired_but_never_set_back_to_an_older_attempt() -> None:
    seen = running(job())
    changed = replace(seen, service=replace(seen.service, selector={"app": "mine"}))
    (action,) = plan(changed, NOW).actions
    assert isinstance(action, PatchObject)
    assert action.patch["spec"]["selector"]["app"] is None
    newer = replace(seen, service=replace(seen.service, selector={"ddpjob.dev/attempt": "2"}))
    assert plan(newer, NOW).actions == ()


def test_the_job_succeeds_when_all_ranks_have_and_the_last_progress_was_read() -> None:
    assert plan(observed(PAIR, ended(PAIR, 0), pod(PAIR, 1)), NOW).status.phase == Phase.RUNNING

    done = observed(PAIR, ended(PAIR, 0), ended(PAIR, 1))
    made = plan(done, NOW)
    assert (made.status.finished, made.lookups) == (False, (ReadLog(pod="job-1-0", uid="pod-uid-1-0"),))

    status = plan(replace(done, logs={"pod-uid-1-0": end_of_log('ddpjob-progress {"step": 42}\n')}), NOW).status
    assert (status.phase, status.progress.step) == (Phase.SUCCEEDED, 42)


@pytest.mark.parametrize(
    ("of", "ran_seconds", "reads"),
    [
        (program(nodes=1), 9, False),
        (program(nodes=1), 10, True),
        (job(nodes=1), 9, True),  # the built-in trainer prints its progress, however short it is
    ],
)
def test_the_log_of_a_program_that_ended_within_seconds_is_not_read(of, ran_seconds, reads) -> None:
    first = ended(of, 0, placed=NOW - ran_seconds)
    assert first.exit is not None
    first = replace(first, exit=replace(first.exit, finished=NOW))

    made = plan(observed(of, first), NOW)
    assert (bool(made.lookups), made.status.finished) == (reads, not reads)
    printed = replace(observed(of, first), progress=Progress(step=1))
    assert plan(printed, NOW).lookups, "a program that prints progress has the last one read"


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    seen = observed(replace(job(), deleting=True))
    made = plan(seen, NOW)
    assert (made.actions, made.status) == ((), seen.job.status)
