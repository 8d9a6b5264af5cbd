from dataclasses import replace

from builders import NOW, job, observed, pod, with_status
from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.failure.messages import sentence
from ddpjob_operator.core.model import ReadWarning, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.policies.obstacles import QUIET_START_SECONDS

MOUNT = 'MountVolume.SetUp failed for volume "script": configmap "forgotten" not found'


def starting(waiting=None, **spec):
    of = job(nodes=2, **spec)
    held = {"running": False, "phase": "Pending", "waiting": waiting}
    seen = observed(of, pod(of, 0), pod(of, 1, **held))
    return with_status(seen, plan(seen, NOW).status)


def test_a_pod_whose_status_says_nothing_has_its_warnings_read() -> None:
    seen = starting()
    assert (plan(seen, NOW + 1).lookups, plan(seen, NOW + 1).wake_at) == ((), NOW + QUIET_START_SECONDS)
    assert plan(seen, NOW + 10).lookups == (ReadWarning(pod="job-1-1", uid="pod-uid-1-1"),)

    status = plan(replace(seen, warnings={"pod-uid-1-1": MOUNT}), NOW + 11).status
    assert (status.phase, status.reason) == (Phase.PENDING, Reason.CONTAINER_CONFIG)
    assert 'configmap "forgotten" not found' in (status.message or "")


def test_a_pod_whose_status_says_it_is_not_asked_about() -> None:
    seen = starting(Waiting(reason="CreateContainerConfigError", message='secret "wandb" not found'))

    assert plan(seen, NOW + 60).lookups == ()


def test_nothing_is_asked_once_the_gang_runs() -> None:
    seen = starting()
    runs = replace(seen, pods=(seen.pods[0], pod(seen.job, 1)), warnings={"pod-uid-1-1": MOUNT})
    made = plan(runs, NOW + 60)

    assert (made.lookups, made.status.phase) == ((), Phase.RUNNING)


def test_the_deadline_names_the_obstacle_and_the_first_pod_that_met_it() -> None:
    seen = starting(Waiting(reason="ErrImagePull", message='image "a/b:1": not found'), deadlines={"startSeconds": 30})
    failure = plan(seen, NOW + 30).status.failure

    assert (failure.reason, failure.rank, failure.pod, failure.node) == (Reason.IMAGE_PULL, 1, "job-1-1", "node-1")
    assert sentence(failure) == (
        "Rank 1 (pod job-1-1, node node-1) did not start in attempt 1: 1 of 2 pods wait: image a/b:1 cannot be pulled:"
        " not found; deadlines.startSeconds is 30s"
    )


def test_a_deadline_met_twice_does_not_quote_the_first_time() -> None:
    seen = starting(Waiting(reason="ErrImagePull", message='image "a/b:1": not found'), deadlines={"startSeconds": 30})
    first = plan(seen, NOW + 30).status
    again = observed(replace(seen.job, status=first), *(replace(p, attempt=2, name=p.name) for p in seen.pods))
    again = with_status(again, plan(again, NOW + 31).status)
    failure = plan(again, NOW + 61).status.failure

    assert failure.attempt == 2
    assert "attempt 1" not in failure.message
