from dataclasses import replace

import pytest

from builders import NOW, created, ended, job, observed, pod, running, with_status
from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.core.model import CreatePod, CreateService, PatchService, ReadLog, Waiting
from ddpjob_operator.core.plan import plan


def test_the_service_comes_before_the_pods() -> None:
    made = plan(observed(job(nodes=2), service=None), NOW)

    assert [type(action) for action in made.actions] == [CreateService, CreatePod, CreatePod]


def test_the_first_pods_need_no_write_before_them() -> None:
    made = plan(observed(job(nodes=2)), NOW)

    assert not made.write_ahead
    assert created(made) == ["job-1-0", "job-1-1"]


def test_only_what_is_missing_is_created() -> None:
    of = job(nodes=3)

    assert created(plan(observed(of, pod(of, 1)), NOW)) == ["job-1-0", "job-1-2"]


def test_created_is_written_once_all_pods_exist() -> None:
    of = job(nodes=2)

    assert not plan(observed(of, pod(of, 0)), NOW).status.condition(ConditionType.CREATED)
    assert plan(observed(of, pod(of, 0), pod(of, 1)), NOW).status.condition(ConditionType.CREATED)


def test_running_needs_every_rank() -> None:
    of = job(nodes=2)
    one = plan(observed(of, pod(of, 0), pod(of, 1, running=False, ready=False)), NOW).status
    both = plan(observed(of, pod(of, 0), pod(of, 1)), NOW).status

    assert (one.phase, one.ready) == (Phase.PENDING, "1/2")
    assert (both.phase, both.ready) == (Phase.RUNNING, "2/2")


def test_the_default_image_is_pinned_and_an_explicit_one_is_not() -> None:
    assert plan(observed(job()), NOW).status.image == "trainer:1"
    assert plan(observed(job(image="mine:2")), NOW).status.image is None


def test_the_pinned_image_outlives_an_upgrade_of_the_operator() -> None:
    seen = observed(job())
    seen = with_status(replace(seen, trainer_image="trainer:2"), plan(seen, NOW).status)

    (action,) = plan(seen, NOW).actions
    assert isinstance(action, CreatePod)
    assert action.body["spec"]["containers"][0]["image"] == "trainer:1"


@pytest.mark.parametrize("seen", [running(job(nodes=2)), running(job(nodes=1, command=["train"]))])
def test_the_plan_of_the_planned_state_is_empty(seen) -> None:
    made = plan(seen, NOW + 60)

    assert (made.status, made.actions, made.questions) == (seen.job.status, (), ())


def test_the_service_never_points_back_to_an_older_attempt() -> None:
    of = job()
    newer = running(of)
    ahead = replace(newer, service=replace(newer.service, selector={"ddpjob.dev/attempt": "2"}))

    assert plan(ahead, NOW).actions == ()


def test_a_changed_service_is_repaired() -> None:
    seen = running(job())
    bent = replace(seen, service=replace(seen.service, selector={"app": "mine"}))

    (action,) = plan(bent, NOW).actions
    assert isinstance(action, PatchService)
    assert action.patch["spec"]["selector"]["app"] is None


@pytest.mark.parametrize(
    ("waiting", "node", "reason", "words"),
    [
        (Waiting(reason="Unschedulable", message="0/4 nodes have it"), None, Reason.UNSCHEDULABLE, "0/4 nodes have it"),
        (Waiting(reason="ErrImagePull", message="not found"), "n", Reason.IMAGE_PULL, "not found"),
        (Waiting(reason="CreateContainerConfigError", message="no Secret"), "n", Reason.CONTAINER_CONFIG, "no Secret"),
    ],
)
def test_a_waiting_gang_says_what_it_waits_for(waiting, node, reason, words) -> None:
    of = job(nodes=2)
    held = pod(of, 1, waiting=waiting, node=node, running=False, ready=False)
    status = plan(observed(of, pod(of, 0), held), NOW).status

    assert (status.phase, status.reason) == (Phase.PENDING, reason)
    assert words in (status.message or "")


def test_a_refused_pod_is_told_in_the_api_servers_words() -> None:
    status = plan(observed(job(), rejections={"job-1-0": "exceeded quota: gpus"}), NOW).status

    assert (status.reason, status.message) == (
        Reason.POD_REJECTED,
        "the API server refuses job-1-0: exceeded quota: gpus",
    )


def test_success_reads_the_last_progress_first() -> None:
    of = job(nodes=2)
    done = observed(of, ended(of, 0), ended(of, 1))

    asked = plan(done, NOW)
    told = plan(replace(done, logs={"pod-uid-1-0": 'ddpjob-progress {"step": 42}\n'}), NOW)

    assert asked.questions == (ReadLog(pod="job-1-0", uid="pod-uid-1-0"),)
    assert not asked.status.finished
    assert (told.status.phase, told.status.progress.step) == (Phase.SUCCEEDED, 42)


def test_success_of_some_is_not_success() -> None:
    of = job(nodes=2)

    assert plan(observed(of, ended(of, 0), pod(of, 1)), NOW).status.phase == Phase.RUNNING


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    seen = observed(replace(job(), deleting=True))

    made = plan(seen, NOW)
    assert (made.actions, made.status) == ((), seen.job.status)


def test_a_spec_that_does_not_parse_ends_the_job_in_words() -> None:
    status = plan(observed(replace(job(), spec=None, spec_error="spec.nodes: too many")), NOW).status

    assert (status.phase, status.reason, status.message) == (
        Phase.FAILED,
        Reason.INVALID_SPEC,
        "spec.nodes: too many",
    )
