from dataclasses import replace

import pytest

from builders import NOW, created, ended, job, observed, pod, running, with_status
from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.core.model import CreatePod, CreateService, PatchService, ReadLog, Rejection, Waiting
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


def test_created_is_written_too_where_all_pods_had_ended_when_they_were_first_seen() -> None:
    of = job(nodes=2)
    first, other = ended(of, 0, code=0), ended(of, 1, code=0)
    made = plan(replace(observed(of, first, other), logs={first.uid: ""}), NOW)

    assert made.status.phase == Phase.SUCCEEDED
    assert made.status.condition(ConditionType.CREATED)


def test_running_needs_every_rank() -> None:
    of = job(nodes=2)
    one = plan(observed(of, pod(of, 0), pod(of, 1, running=False)), NOW).status
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

    assert (made.status, made.actions, made.lookups) == (seen.job.status, (), ())


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
        (
            Waiting(
                reason="Unschedulable",
                message="0/4 nodes are available: 4 Insufficient nvidia.com/gpu. preemption: 0/4 nodes are available.",
            ),
            None,
            Reason.UNSCHEDULABLE,
            "1 of 2 pods have no node: 0/4 nodes have nvidia.com/gpu: 8 free; pods with a node: 1",
        ),
        (Waiting(reason="ErrImagePull", message="not found"), "n", Reason.IMAGE_PULL, "not found"),
        (
            Waiting(
                reason="ErrImagePull",
                message='failed to pull and unpack image "a.b/c:1": failed to resolve image: dial tcp: lookup a.b: no such host',
            ),
            "n",
            Reason.IMAGE_PULL,
            "1 of 2 pods wait: image a.b/c:1 cannot be pulled: lookup a.b: no such host",
        ),
        (Waiting(reason="CreateContainerConfigError", message="no Secret"), "n", Reason.CONTAINER_CONFIG, "no Secret"),
    ],
)
def test_a_waiting_gang_says_what_it_waits_for(waiting, node, reason, words) -> None:
    of = job(nodes=2, gpusPerNode=8)
    held = pod(of, 1, waiting=waiting, node=node, running=False)
    status = plan(observed(of, pod(of, 0), held), NOW).status

    assert (status.phase, status.reason) == (Phase.PENDING, reason)
    assert words in (status.message or "")


def test_a_pod_that_is_deleted_before_it_started_is_told() -> None:
    of = job(nodes=2)
    going = pod(of, 1, running=False, deletion_deadline=NOW + 30, disruption="DeletionByTaintManager: node n is gone")
    status = plan(observed(of, pod(of, 0), going), NOW).status

    assert (status.phase, status.reason) == (Phase.PENDING, Reason.STARTING)
    assert status.message == (
        "waiting for pod job-1-1, which is being deleted, to stop: DeletionByTaintManager: node n is gone"
    )


def test_a_pod_that_is_deleted_while_it_runs_is_told() -> None:
    of = job(nodes=2)
    going = pod(of, 1, deletion_deadline=NOW + 30)
    status = plan(observed(of, pod(of, 0), going), NOW).status

    assert (status.phase, status.reason) == (Phase.RUNNING, Reason.RUNNING)
    assert status.message == "waiting for pod job-1-1, which is being deleted, to stop"


def test_a_refused_pod_is_told_in_the_api_servers_words() -> None:
    status = plan(observed(job(), rejections={"job-1-0": Rejection("denied by policy")}), NOW).status

    assert (status.reason, status.message) == (
        Reason.POD_REJECTED,
        "the API server refuses job-1-0: denied by policy",
    )


def test_a_full_quota_is_told_in_numbers() -> None:
    words = (
        'pods "job-1-1" is forbidden: exceeded quota: team, requested: pods=1,requests.nvidia.com/gpu=8,'
        " used: pods=1,requests.nvidia.com/gpu=8, limited: pods=1,requests.nvidia.com/gpu=8"
    )
    of = job(nodes=2)
    status = plan(observed(of, pod(of, 0), rejections={"job-1-1": Rejection(words)}), NOW).status

    assert status.reason == Reason.QUOTA_EXCEEDED
    assert (status.message or "").startswith(
        "1 of 2 pods exceed quota team: 1 of 1 pods used, 1 more wanted by each pod;"
        " 8 of 8 requests.nvidia.com/gpu used, 8 more wanted by each pod"
    )


def test_success_reads_the_last_progress_first() -> None:
    of = job(nodes=2)
    done = observed(of, ended(of, 0), ended(of, 1))

    asked = plan(done, NOW)
    told = plan(replace(done, logs={"pod-uid-1-0": 'ddpjob-progress {"step": 42}\n'}), NOW)

    assert asked.lookups == (ReadLog(pod="job-1-0", uid="pod-uid-1-0"),)
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


def test_the_image_of_pods_that_exist_is_pinned_rather_than_a_newer_operators() -> None:
    of = job(nodes=2)
    made = plan(observed(of, pod(of, 0, image="trainer:1"), trainer_image="trainer:2"), NOW)

    assert made.status.image == "trainer:1"
    (action,) = made.actions
    assert action.body["spec"]["containers"][0]["image"] == "trainer:1"
