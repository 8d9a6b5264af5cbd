from dataclasses import replace

import pytest

from builders import (
    ECHO,
    NOW,
    TRACEBACK,
    broken,
    ended,
    job,
    program,
    with_status,
)
from ddpjob_operator.api.names import Phase, Reason
from ddpjob_operator.core.failure import ECHO_WAIT_SECONDS
from ddpjob_operator.core.model import ReadLog
from ddpjob_operator.core.plan import plan


def test_the_failure_names_rank_pod_node_code_and_exception() -> None:
    of = program(nodes=2)
    failure = plan(broken(of, ended(of, 1, code=3, message=TRACEBACK)), NOW).status.failure

    assert (failure.rank, failure.pod, failure.node) == (1, "job-1-1", "node-1")
    assert (failure.exit_code, failure.reason, failure.message) == (3, Reason.PROGRAM_ERROR, "ValueError: boom")


def test_an_echo_waits_for_a_better_cause() -> None:
    of = program(nodes=2)
    seen = broken(of, ended(of, 0, code=1, message=ECHO, ended_seen=NOW))

    made = plan(seen, NOW)
    assert (made.status.attempt, made.wake_at) == (1, NOW + ECHO_WAIT_SECONDS)


def test_an_echo_is_the_cause_when_nothing_better_comes() -> None:
    of = program(nodes=2)
    seen = broken(of, ended(of, 0, code=1, message=ECHO, ended_seen=NOW))

    assert plan(seen, NOW + 2).status.failure.reason == Reason.COLLECTIVE_ERROR


def test_class_beats_time() -> None:
    of = program(nodes=2)
    early_echo = ended(of, 0, code=1, message=ECHO, ended_seen=NOW - 5)
    late_cause = ended(of, 1, code=1, message=TRACEBACK, ended_seen=NOW)

    assert plan(broken(of, early_echo, late_cause), NOW).status.failure.rank == 1


@pytest.mark.parametrize(
    ("pod_changes", "reason"),
    [
        ({"code": 137}, Reason.KILLED),
        ({"code": 1, "exit_reason": "OOMKilled"}, Reason.OUT_OF_MEMORY),
        ({"code": 137, "exit_reason": "OOMKilled"}, Reason.OUT_OF_MEMORY),
        ({"code": 143, "disruption": "EvictionByEvictionAPI: drained"}, Reason.POD_DISRUPTED),
        ({"code": 137, "reason": "Evicted"}, Reason.POD_DISRUPTED),
        ({"code": 143, "deletion_deadline": NOW + 9}, Reason.POD_DELETED),
    ],
)
def test_every_end_has_its_class(pod_changes, reason) -> None:
    of = program(nodes=1)

    assert plan(broken(of, ended(of, 0, **pod_changes)), NOW).status.failure.reason == reason


def test_a_signal_is_named() -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    status = plan(broken(of, ended(of, 0, code=137)), NOW).status

    assert status.failure.signal == 9
    assert "died of signal 9 (SIGKILL)" in (status.message or "")


def test_a_silent_end_asks_for_the_log_and_what_is_final_waits_for_it() -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    seen = broken(of, ended(of, 0, code=1))

    made = plan(seen, NOW)
    assert (made.status.finished, made.questions) == (False, (ReadLog(pod="job-1-0", uid="pod-uid-1-0"),))
    told = plan(replace(seen, logs={"pod-uid-1-0": TRACEBACK}), NOW)
    assert told.status.failure.message == "ValueError: boom"


def test_a_restart_does_not_wait_for_a_log_and_the_record_is_refined_by_it() -> None:
    of = program(nodes=2)
    seen = broken(of, ended(of, 1, code=1))
    made = plan(seen, NOW)
    assert (made.status.attempt, made.status.failure.message) == (2, "")

    later = replace(with_status(seen, made.status), logs={"pod-uid-1-1": TRACEBACK})
    assert plan(later, NOW + 1).status.failure.message == "ValueError: boom"
    assert plan(later, NOW + 1).status.attempts[-1].message == "ValueError: boom"


def test_an_unreadable_log_does_not_hold_up_the_end() -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    seen = replace(broken(of, ended(of, 0, code=1)), logs={"pod-uid-1-0": ""})

    assert plan(seen, NOW).status.phase == Phase.FAILED


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("rank 0\n" + TRACEBACK, "ValueError: boom"),
        ('rank 0\nrk(x)\n  File "/app/t.py", line 3, in g\n    raise E\nmine.LateError: no', "mine.LateError: no"),
        (
            "rank 0\ncheckpoint at step 4: seed was 0 when it was saved",
            "rank 0 checkpoint at step 4: seed was 0 when it was saved",
        ),
    ],
)
def test_the_trainers_own_last_words_are_told(message, words) -> None:
    of = job(nodes=1)

    assert plan(broken(of, ended(of, 0, code=1, message=message)), NOW).status.failure.message == words


def test_a_survivor_that_ends_by_itself_when_we_delete_it_was_not_deleted_by_somebody() -> None:
    of = program(nodes=2)
    seen = broken(of, ended(of, 0, code=1, message=ECHO, ended_seen=NOW - 5))
    seen = with_status(seen, plan(seen, NOW).status)
    survivor = ended(of, 1, code=1, message=ECHO, deletion_deadline=NOW + 1)

    status = plan(replace(seen, pods=(seen.pods[0], survivor)), NOW + 1).status
    assert (status.failure.reason, status.restarts.counted) == (Reason.COLLECTIVE_ERROR, 1)


def test_a_node_that_came_back_without_its_containers_disrupted_them() -> None:
    of = program(nodes=1)
    status = plan(broken(of, ended(of, 0, code=137, exit_reason="ContainerStatusUnknown")), NOW).status

    assert (status.failure.reason, status.restarts.counted) == (Reason.POD_DISRUPTED, 0)
