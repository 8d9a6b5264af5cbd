"""What a gang that does not start waits for, by its pods and by refused requests."""

from dataclasses import replace

import pytest

from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.actions import ReadWarning
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.model import Rejection, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.obstacles import QUIET_START_SECONDS
from support.builders import NOW, job, observed, pending, pod, reconciled, running

MOUNT = 'MountVolume.SetUp failed for volume "script": configmap "forgotten" not found'
NO_IMAGE = Waiting(reason="ErrImagePull", message='image "a/b:1": not found')


def starting(waiting=None, **spec):
    """Rank 0 runs, and the containers of rank 1 have not started."""
    of = job(nodes=2, **spec)
    return reconciled(observed(of, pod(of, 0), pending(of, 1, node="node-1", waiting=waiting)))


@pytest.mark.parametrize(
    ("waiting", "node", "reason", "text"),
    [
        (("Unschedulable", "0/4 nodes have it"), None, Reason.UNSCHEDULABLE, "0/4 nodes have it"),
        (
            ("Unschedulable", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu. preemption: 0/4 nodes are available."),
            None,
            Reason.UNSCHEDULABLE,
            "1 of 2 pods have no node: 0/4 nodes have nvidia.com/gpu: 8 free; pods with a node: 1",
        ),
        (
            ("Unschedulable", "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: 0/2"),
            None,
            Reason.UNSCHEDULABLE,
            "have no node: 0/2 nodes are available: 2 cannot allocate all claims; pods with a node: 1",
        ),
        (("ErrImagePull", "not found"), "n", Reason.IMAGE_PULL, "not found"),
        (
            ("ErrImagePull", 'failed to pull and unpack image "a.b/c:1": failed to resolve: dial tcp: lookup a.b: no such host'),
            "n",
            Reason.IMAGE_PULL,
            "1 of 2 pods wait: image a.b/c:1 cannot be pulled: lookup a.b: no such host",
        ),
        (("CreateContainerConfigError", "no Secret"), "n", Reason.CONTAINER_CONFIG, "no Secret"),
    ],
)  # fmt: skip
def test_the_status_of_a_waiting_gang_says_what_it_waits_for(waiting, node, reason, text) -> None:
    of = job(nodes=2, gpusPerNode=8)
    held = pending(of, 1, waiting=Waiting(reason=waiting[0], message=waiting[1]), node=node)
    status = plan(observed(of, pod(of, 0), held), NOW).status
    assert (status.phase, status.reason) == (Phase.PENDING, reason)
    assert text in status.message


@pytest.mark.parametrize(
    ("template", "scheduler"),
    [
        ({}, "default-scheduler yet"),
        ({"spec": {"schedulerName": "gpu-scheduler"}}, "gpu-scheduler yet"),
        (
            {
                "spec": {
                    "resourceClaims": [{"resourceClaimTemplateName": "t"}, {"resourceClaimName": "c"}, {"name": "x"}]
                }
            },
            "default-scheduler yet: it waits for their claims, so these must exist in the namespace: ResourceClaim c, ResourceClaimTemplate t",
        ),
    ],
)
def test_a_scheduler_that_does_not_look_at_the_pods_is_named(template, scheduler) -> None:
    of = job(nodes=2, template=template)
    status = plan(observed(of, pod(of, 0), pending(of, 1)), NOW).status
    assert status.message == f"1 of 2 pods have not been considered by the scheduler {scheduler}"


QUOTA = (
    'pods "job-1-1" is forbidden: exceeded quota: team, requested: pods=1,requests.nvidia.com/gpu=8,'
    " used: pods=1,requests.nvidia.com/gpu=8, limited: pods=1,requests.nvidia.com/gpu=8"
)
QUOTA_IN_NUMBERS = (
    "1 of 2 pods exceed quota team: 1 of 1 pods used, 1 more wanted by each pod;"
    " 8 of 8 requests.nvidia.com/gpu used, 8 more wanted by each pod"
)


@pytest.mark.parametrize(
    ("refused", "reason", "message"),
    [
        ("denied by policy", Reason.POD_REJECTED, "the API server refuses to create pod job-1-1: denied by policy"),
        (QUOTA, Reason.QUOTA_EXCEEDED, QUOTA_IN_NUMBERS),
    ],
)
def test_a_refused_pod_is_reported_with_the_api_servers_message_and_a_quota_in_numbers(
    refused, reason, message
) -> None:
    of = job(nodes=2)
    status = plan(observed(of, pod(of, 0), rejections={"job-1-1": Rejection(refused)}), NOW).status
    assert status.reason == reason
    assert status.message.startswith(message)


@pytest.mark.parametrize(("runs", "phase"), [(False, Phase.PENDING), (True, Phase.RUNNING)])
def test_a_pod_that_is_being_deleted_is_reported(runs, phase) -> None:
    of = job(nodes=2)
    going = pod(of, 1, running=runs, deletion_deadline=NOW + 30, disruption="DeletionByTaintManager: node n is gone")
    status = plan(observed(of, pod(of, 0), going), NOW).status
    assert (status.phase, status.reason) == (phase, Reason.RUNNING if runs else Reason.STARTING)
    assert status.message == (
        "waiting for pod job-1-1, which is being deleted, to stop: DeletionByTaintManager: node n is gone"
    )


def test_the_warnings_of_a_pod_are_read_if_its_status_has_no_reason() -> None:
    seen = starting()
    assert (plan(seen, NOW + 1).lookups, plan(seen, NOW + 1).wake_at) == ((), NOW + QUIET_START_SECONDS)
    assert plan(seen, NOW + 10).lookups == (ReadWarning(pod="job-1-1", uid="pod-uid-1-1"),)
    assert plan(starting(Waiting(reason="CreateContainerConfigError", message="")), NOW + 60).lookups == ()

    warned = replace(seen, warnings={"pod-uid-1-1": MOUNT})
    status = plan(warned, NOW + 11).status
    assert (status.phase, status.reason) == (Phase.PENDING, Reason.CONTAINER_CONFIG)
    assert 'configmap "forgotten" not found' in status.message

    made = plan(replace(warned, pods=running(seen.job).pods), NOW + 60)
    assert (made.lookups, made.status.phase) == ((), Phase.RUNNING)


def test_the_start_deadline_names_the_obstacle_and_the_first_pod_that_met_it() -> None:
    seen = starting(NO_IMAGE, deadlines={"startSeconds": 30})
    first = plan(seen, NOW + 30).status
    assert (first.failure.reason, first.failure.rank) == (Reason.IMAGE_PULL, 1)
    assert (first.failure.pod, first.failure.node) == ("job-1-1", "node-1")
    assert failure_sentence(first.failure) == (
        "Rank 1 (pod job-1-1, node node-1) did not start in attempt 1: 1 of 2 pods wait: image a/b:1 cannot be pulled:"
        " not found; deadlines.startSeconds is 30s"
    )
    pods = (replace(p, attempt=2) for p in seen.pods)
    again = reconciled(observed(replace(seen.job, status=first), *pods), NOW + 31)
    failure = plan(again, NOW + 61).status.failure
    assert failure.attempt == 2
    assert "attempt 1" not in failure.message, "the message is not repeated within itself"


@pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImageNeverPull"])
def test_an_image_that_can_never_be_pulled_ends_the_job_at_once(reason: str) -> None:
    of = job(nodes=1)
    held = pending(of, node="node-0", waiting=Waiting(reason=reason, message='couldn\'t parse image "X:y"'))
    status = plan(observed(of, held), NOW).status
    assert (status.phase, status.reason) == ("Failed", Reason.IMAGE_PULL)
    assert reason in status.message


def test_a_quota_that_the_job_alone_can_never_fit_says_so() -> None:
    of = job(nodes=4)
    refused = Rejection(
        'pods "job-1-3" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=8,'
        " limited: requests.nvidia.com/gpu=16"
    )
    status = plan(observed(of, rejections={"job-1-3": refused}), NOW).status
    assert "the job alone needs 32 requests.nvidia.com/gpu, so it can never fit" in status.message
