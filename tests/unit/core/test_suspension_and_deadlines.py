from dataclasses import replace

from builders import NOW, created, deleted, ended, job, observed, pod, running, with_status
from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.core.model import DeleteJob, DeletePods, ReadNode, Rejection
from ddpjob_operator.core.plan import plan


def suspended(seen, suspend=True):
    spec = seen.job.spec.model_copy(update={"suspend": suspend})
    return replace(seen, job=replace(seen.job, spec=spec))


def test_a_job_that_begins_suspended_creates_nothing() -> None:
    made = plan(observed(job(suspend=True), service=None), NOW)

    assert (made.actions, made.status.phase, made.status.attempt) == ((), Phase.SUSPENDED, 1)


def test_suspending_writes_the_next_attempt_then_stops_the_pods_with_their_own_grace() -> None:
    seen = suspended(running(job(nodes=2)))
    ahead = plan(seen, NOW)
    assert (ahead.write_ahead, ahead.status.attempt, ahead.status.phase) == (True, 2, Phase.SUSPENDED)

    made = plan(with_status(seen, ahead.status), NOW)
    assert made.actions == (DeletePods(attempt=1),)
    assert made.status.restarts.counted == 0


def test_suspending_keeps_what_failed_pods_tell() -> None:
    seen = suspended(running(job(nodes=3)))
    ahead = plan(seen, NOW).status
    of = seen.job
    some = replace(with_status(seen, ahead), pods=(ended(of, 0, code=1), pod(of, 1), pod(of, 2)))

    assert deleted(plan(some, NOW)) == {"job-1-1": None, "job-1-2": None}


def test_resuming_starts_the_next_attempt() -> None:
    seen = suspended(running(job(nodes=2)))
    seen = with_status(seen, plan(seen, NOW).status)
    stopped = replace(seen, pods=())
    stopped = with_status(stopped, plan(stopped, NOW).status)
    assert stopped.job.status.condition(ConditionType.SUSPENDED)

    made = plan(suspended(stopped, suspend=False), NOW)
    assert created(made) == ["job-2-0", "job-2-1"]
    assert not made.status.condition(ConditionType.SUSPENDED)


def test_a_job_whose_ranks_are_all_done_succeeds_even_if_it_is_suspended() -> None:
    of = job(nodes=1)
    seen = suspended(replace(running(of), pods=(ended(of, 0),), logs={"pod-uid-1-0": ""}))

    assert plan(seen, NOW).status.phase == Phase.SUCCEEDED


def test_an_edit_made_while_suspended_replaces_the_gang_without_counting() -> None:
    seen = running(job(nodes=1))
    edited = replace(seen, job=replace(seen.job, spec=job(nodes=1, masterPort=30000).spec))
    made = plan(edited, NOW)

    assert (made.status.attempt, made.status.reason, made.status.restarts.counted) == (2, Reason.SPEC_CHANGED, 0)


def test_the_end_is_final() -> None:
    of = job(nodes=1, restart={"maxRestarts": 0})
    seen = replace(running(of), pods=(ended(of, 0, code=1, message="x"),))
    failed = with_status(seen, plan(seen, NOW).status)

    for pods in ((), (pod(of, 0),), (ended(of, 0),)):
        assert plan(replace(failed, pods=pods), NOW + 1000).status == failed.job.status


def test_an_edit_of_a_finished_job_is_observed() -> None:
    of = job(nodes=1, restart={"maxRestarts": 0})
    seen = replace(running(of), pods=(ended(of, 0, code=1, message="x"),))
    failed = with_status(seen, plan(seen, NOW).status)
    edited = replace(failed, job=replace(failed.job, generation=2))

    status = plan(edited, NOW).status
    assert status.observed_generation == 2
    assert {condition.observed_generation for condition in status.conditions} == {2}
    assert status.model_copy(update={"observed_generation": 1, "conditions": failed.job.status.conditions}) == (
        failed.job.status
    )


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    of = job(nodes=1, ttlSecondsAfterFinished=60)
    seen = replace(running(of), pods=(ended(of, 0),), logs={"pod-uid-1-0": ""})
    done = with_status(seen, plan(seen, NOW).status)

    early = plan(done, NOW + 59)
    assert (early.actions, early.wake_at) == ((), NOW + 60)
    assert plan(done, NOW + 60).actions == (DeleteJob(name="job", uid="job-uid"),)


def test_a_gang_that_finds_no_place_in_time_fails() -> None:
    of = job(nodes=1, deadlines={"queueSeconds": 30})
    seen = observed(of, pod(of, 0, node=None, running=False, phase="Pending"))
    seen = with_status(seen, plan(seen, NOW).status)

    assert plan(seen, NOW).wake_at == NOW + 30
    status = plan(seen, NOW + 30).status
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.QUEUE_DEADLINE)
    assert "queueSeconds" in (status.message or "")


def test_a_gang_that_does_not_come_up_in_time_is_restarted_and_counted() -> None:
    of = job(nodes=1, deadlines={"startSeconds": 30})
    seen = observed(of, pod(of, 0, running=False, phase="Pending"))
    seen = with_status(seen, plan(seen, NOW).status)

    made = plan(seen, NOW + 30)
    assert (made.status.attempt, made.status.restarts.counted) == (2, 1)
    assert made.write_ahead


def test_active_time_adds_up_over_attempts_and_leaves_out_suspension() -> None:
    of = job(nodes=1, deadlines={"activeSeconds": 100})
    seen = suspended(running(of, NOW))
    ahead = plan(seen, NOW + 70).status
    assert ahead.active_seconds_before == 70

    resumed = with_status(suspended(replace(seen, pods=(pod(of, 0, 2),)), suspend=False), ahead)
    resumed = with_status(resumed, plan(resumed, NOW + 1000).status)
    assert plan(resumed, NOW + 1029).status.phase == Phase.RUNNING
    assert plan(resumed, NOW + 1030).status.reason == Reason.ACTIVE_DEADLINE


def test_an_edit_that_was_suspended_and_resumed_unseen_replaces_the_gang() -> None:
    seen = running(job(nodes=2))
    grown = replace(seen, job=replace(seen.job, spec=job(nodes=3).spec))
    assert plan(grown, NOW).status.reason == Reason.SPEC_CHANGED

    of = job(nodes=3)
    two_done = replace(running(of), pods=(ended(of, 0), ended(of, 1), pod(of, 2)), logs={"pod-uid-1-0": ""})
    shrunk = replace(two_done, job=replace(two_done.job, spec=job(nodes=2).spec))
    assert plan(shrunk, NOW).status.reason == Reason.SPEC_CHANGED


def test_a_suspended_job_on_a_lost_node_says_one_thing() -> None:
    seen = suspended(running(job(nodes=1)))
    seen = with_status(seen, plan(seen, NOW).status)
    overdue = replace(seen, pods=(pod(seen.job, 0, 1, deletion_deadline=NOW - 9),), nodes_gone=frozenset({"node-0"}))

    assert plan(overdue, NOW).lookups
    assert plan(overdue, NOW).status.message == "spec.suspend is true"


EVICTION = "EvictionByEvictionAPI: Eviction API: evicting"


def test_a_node_is_asked_for_only_while_the_record_of_what_it_did_is_open() -> None:
    """A finished job with one evicted pod among its evidence polled that pod's node every two seconds for ever."""
    of = job(nodes=1)
    evicted = ended(of, 0, code=143, disruption=EVICTION)
    seen = replace(running(of), pods=(evicted,))
    restarting = with_status(seen, plan(seen, NOW).status)
    asked = (ReadNode(name="node-0"),)
    assert plan(seen, NOW).lookups == asked
    assert plan(restarting, NOW).lookups == asked

    runs = replace(restarting, pods=(evicted, pod(of, 0, 2)))
    assert plan(runs, NOW).lookups == ()

    held = suspended(restarting)
    held = with_status(held, plan(held, NOW).status)
    assert plan(held, NOW).lookups == ()


def test_a_finished_job_asks_for_no_node_of_its_evidence() -> None:
    of = job(nodes=2, restart={"rules": [{"exitCodes": [143], "action": "Fail"}]})
    evicted = ended(of, 0, code=143, disruption=EVICTION)
    seen = replace(running(of), pods=(evicted, ended(of, 1, code=1, message="x")), logs={evicted.uid: ""})
    done = with_status(seen, plan(seen, NOW).status)
    assert done.job.status.finished

    assert plan(done, NOW).lookups == ()
    overdue = replace(done, pods=(pod(of, 1, deletion_deadline=NOW - 5),))
    assert plan(overdue, NOW).lookups == (ReadNode(name="node-1"),)


def test_a_gang_that_is_refused_by_a_quota_does_not_wait_for_ever() -> None:
    of = job(nodes=2, deadlines={"queueSeconds": 10})
    seen = observed(of, pod(of, 0), rejections={"job-1-1": Rejection("exceeded quota")})
    seen = with_status(seen, plan(seen, NOW).status)

    assert plan(seen, NOW + 9).status.reason == Reason.QUOTA_EXCEEDED
    assert plan(seen, NOW + 10).status.reason == Reason.QUEUE_DEADLINE


def test_a_gang_that_admission_refuses_for_longer_than_it_may_start_fails() -> None:
    seen = observed(job(deadlines={"startSeconds": 30}), rejections={"job-1-0": Rejection("denied by policy")})
    seen = with_status(seen, plan(seen, NOW).status)

    assert plan(seen, NOW + 29).status.phase == Phase.PENDING
    status = plan(seen, NOW + 30).status
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.POD_REJECTED)
    assert "denied by policy" in (status.message or "")


def test_a_job_that_is_applied_again_waits_for_its_namesake_s_pods_however_long_they_take() -> None:
    """After a node loss the pods of a deleted job can outlive it; the job applied again failed with PodRejected."""
    leaving = Rejection("waiting until pod job-1-0 of another job is deleted", is_terminating=True)
    seen = observed(job(nodes=2, deadlines={"startSeconds": 30}), rejections={"job-1-0": leaving})
    seen = with_status(seen, plan(seen, NOW).status)

    status = plan(seen, NOW + 10**6).status
    assert (status.phase, status.reason, status.message) == (Phase.PENDING, Reason.STOPPING, leaving.message)


def test_what_the_api_server_refuses_for_good_is_reported_before_what_only_takes_time() -> None:
    leaving = Rejection("waiting until pod job-1-0 of another job is deleted", is_terminating=True)
    refused = {"job-1-0": leaving, "job-1-1": Rejection("denied by policy")}
    seen = observed(job(nodes=2, deadlines={"startSeconds": 30}), rejections=refused)
    seen = with_status(seen, plan(seen, NOW).status)

    assert plan(seen, NOW + 29).status.reason == Reason.POD_REJECTED
    assert plan(seen, NOW + 30).status.phase == Phase.FAILED


def test_a_gang_waits_for_a_webhook_that_is_down_for_as_long_as_it_is() -> None:
    down = {"job-1-0": Rejection("Internal error occurred: failed calling webhook", by_failure=True)}
    seen = observed(job(deadlines={"startSeconds": 30}), rejections=down)
    seen = with_status(seen, plan(seen, NOW).status)

    assert plan(seen, NOW + 10**6).status.reason == Reason.POD_REJECTED
    assert plan(seen, NOW + 10**6).status.phase == Phase.PENDING


def test_an_attempt_that_ended_by_a_deadline_names_no_rank() -> None:
    of = job(nodes=1, deadlines={"startSeconds": 30})
    seen = observed(of, pod(of, 0, running=False, phase="Pending"))
    seen = with_status(seen, plan(seen, NOW).status)
    later = with_status(seen, plan(seen, NOW + 30).status)

    assert "None" not in (plan(later, NOW + 31).status.message or "")
