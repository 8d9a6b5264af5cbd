from dataclasses import replace

from builders import NOW, changed, ended, job, pod, running, with_status
from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.plan import plan


def one_of_two_done(since: float = NOW, **spec):
    seen = running(job(nodes=2, **spec), NOW - 100)
    return replace(seen, pods=(pod(seen.job, 0), ended(seen.job, 1, ended_seen=since)))


def test_for_a_moment_it_is_nothing_to_tell() -> None:
    made = plan(one_of_two_done(), NOW + 29)

    assert (made.status.reason, made.wake_at) == (Reason.RUNNING, NOW + 30)


def test_then_the_status_names_who_runs_on() -> None:
    status = plan(one_of_two_done(), NOW + 30).status

    assert (status.phase, status.reason) == (Phase.RUNNING, Reason.FINISHING)
    assert "1 of 2 ranks have succeeded; rank 0 (pod job-1-0, node node-0) still runs" in (status.message or "")


def test_in_the_end_the_gang_is_restarted_and_the_late_rank_named() -> None:
    seen = one_of_two_done(deadlines={"finishSeconds": 600})
    seen = with_status(seen, plan(seen, NOW + 30).status)
    assert plan(seen, NOW + 599).status.attempt == 1

    failure = plan(seen, NOW + 600).status.failure
    assert (failure.reason, failure.rank, failure.pod) == (Reason.FINISH_DEADLINE, 0, "job-1-0")


def test_a_rank_that_ends_well_because_it_was_told_to_stop_has_not_succeeded() -> None:
    """A program may answer SIGTERM with exit code 0; taken for success, an evicted job of one rank would be Succeeded."""
    of = job(nodes=1)
    seen = running(of)
    for told in ({"deletion_deadline": NOW + 9}, {"disruption": "EvictionByEvictionAPI: evicting"}):
        made = plan(replace(seen, pods=(ended(of, 0, **told),), logs={"pod-uid-1-0": ""}), NOW)
        assert (made.status.attempt, made.status.phase) == (2, Phase.RESTARTING)


def test_a_rank_that_had_ended_well_stays_so_when_its_pod_is_tidied_away() -> None:
    seen = one_of_two_done()
    done = seen.pods[1]
    tidied = replace(seen, pods=seen.pods[:1], vanished=(done,))
    assert plan(tidied, NOW).status.attempt == 1

    drained = changed(
        done, deletion_deadline=NOW, deletion_requested=NOW, exit=replace(done.exit, finished=NOW - 60), disruption="x"
    )
    both = replace(seen, pods=(ended(seen.job, 0),), vanished=(drained,), logs={"pod-uid-1-0": ""})
    assert plan(both, NOW).status.phase == Phase.SUCCEEDED


def test_a_rank_that_a_deadline_of_its_template_or_the_kubelet_ended_has_not_succeeded() -> None:
    of = job(nodes=1)
    for reason in ("DeadlineExceeded", "Terminated"):
        stopped = replace(running(of), pods=(ended(of, 0, reason=reason),), logs={"pod-uid-1-0": ""})
        assert plan(stopped, NOW).status.phase == Phase.RESTARTING
