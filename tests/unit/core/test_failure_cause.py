from dataclasses import replace

import pytest

from builders import (
    ECHO,
    NOW,
    TRACEBACK,
    broken,
    deleted,
    ended,
    job,
    pod,
    program,
    running,
    with_status,
)
from ddpjob_operator.api.names import Phase, Reason, contract
from ddpjob_operator.core.failure.cause import ECHO_WAIT_SECONDS
from ddpjob_operator.core.failure.classes import CLASSES
from ddpjob_operator.core.failure.messages import sentence
from ddpjob_operator.core.model import ReadLog, ReadNode
from ddpjob_operator.core.plan import plan

START_ERROR = (
    "failed to create containerd task: runc create failed: unable to start container process:"
    ' exec: "trian": executable file not found in $PATH'
)


def raising(exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "t.py", line 1\n{exception}\n'


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


def test_a_time_out_of_a_collective_is_not_the_cause_if_another_rank_fails_by_itself_later() -> None:
    """A time-out and a lost connection are both echoes; only the second was known to lose against a program error."""
    of = program(nodes=3)
    waited = ended(
        of, 0, code=1, message=raising("RuntimeError: Timed out waiting 8000ms for recv"), ended_seen=NOW - 5
    )
    lost = ended(of, 1, code=1, message=ECHO, ended_seen=NOW - 4)
    cause = ended(of, 2, code=1, message=TRACEBACK, ended_seen=NOW)

    failure = plan(broken(of, waited, lost, cause), NOW).status.failure
    assert (failure.rank, failure.reason) == (2, Reason.PROGRAM_ERROR)
    assert plan(broken(of, waited, lost), NOW).status.failure.reason == Reason.COLLECTIVE_TIMEOUT


@pytest.mark.parametrize(
    ("pod_changes", "reason"),
    [
        ({"code": 137}, Reason.KILLED),
        ({"code": 1, "exit_reason": "OOMKilled"}, Reason.OUT_OF_MEMORY),
        ({"code": 137, "exit_reason": "OOMKilled"}, Reason.OUT_OF_MEMORY),
        ({"code": 143, "disruption": "EvictionByEvictionAPI: evicting"}, Reason.EVICTED),
        ({"code": 137, "reason": "Evicted"}, Reason.EVICTED),
        ({"code": 143, "deletion_deadline": NOW + 9}, Reason.POD_DELETED),
        ({"code": 143, "disruption": "PreemptionByScheduler: preempting"}, Reason.PREEMPTED),
        ({"code": 143, "disruption": "DeletionByTaintManager: taint"}, Reason.POD_DISRUPTED),
        ({"code": 143, "reason": "Terminated"}, Reason.NODE_DRAINED),
        ({"code": 128, "exit_reason": "StartError", "message": START_ERROR}, Reason.BAD_COMMAND),
        (
            {"code": 128, "exit_reason": "StartError", "message": "nvidia-container-cli: timed out"},
            Reason.CONTAINER_CONFIG,
        ),
        ({"code": 127}, Reason.PROGRAM_ERROR),
        ({"code": 1, "message": raising("torch.OutOfMemoryError: CUDA out of memory. Tried")}, Reason.OUT_OF_MEMORY),
        ({"code": 1, "message": raising("RuntimeError: Timed out waiting 8000ms for recv")}, Reason.COLLECTIVE_TIMEOUT),
        ({"code": 1, "message": raising("RuntimeError: Connection closed by peer")}, Reason.COLLECTIVE_ERROR),
        ({"code": 134, "message": "Watchdog caught collective operation timeout: WorkNCCL"}, Reason.COLLECTIVE_TIMEOUT),
        ({"code": 134, "message": "free(): invalid pointer"}, Reason.KILLED),
    ],
)
def test_every_end_has_its_class(pod_changes, reason) -> None:
    of = program(nodes=1)

    assert plan(broken(of, ended(of, 0, **pod_changes)), NOW).status.failure.reason == reason


@pytest.mark.parametrize(
    ("code", "of_trainer"),
    [
        (contract.EXIT_BAD_CONFIG, Reason.BAD_CONFIG),
        (contract.EXIT_HUNG, Reason.HUNG),
        (contract.EXIT_OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
    ],
)
def test_the_trainers_codes_mean_something_for_the_trainer_alone(code, of_trainer) -> None:
    for of, reason in ((job(nodes=1), of_trainer), (program(nodes=1), Reason.PROGRAM_ERROR)):
        assert plan(broken(of, ended(of, 0, code=code, message="rank 0\nno")), NOW).status.failure.reason == reason


def test_a_shortage_that_the_trainer_finds_before_training_is_restarted_and_counted() -> None:
    of = job(nodes=1)
    message = "rank 0\npreflight: rank 0 (pod job-1-0 on node n): /checkpoints has 0 MiB free for checkpoints"
    status = plan(broken(of, ended(of, 0, code=contract.EXIT_PROGRAM_ERROR, message=message)), NOW).status

    assert (status.attempt, status.restarts.counted) == (2, 1)
    assert "/checkpoints has 0 MiB free" in (status.message or "")


def test_a_signal_is_named() -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    status = plan(broken(of, ended(of, 0, code=137)), NOW).status

    assert status.failure.signal == 9
    assert "died of signal 9 (SIGKILL)" in (status.message or "")


def test_a_silent_end_asks_for_the_log_and_what_is_final_waits_for_it() -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    seen = broken(of, ended(of, 0, code=1))

    made = plan(seen, NOW)
    assert (made.status.finished, made.lookups) == (False, (ReadLog(pod="job-1-0", uid="pod-uid-1-0"),))
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
            "checkpoint at step 4: seed was 0 when it was saved",
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


def test_a_drained_node_is_told_from_an_eviction_by_being_cordoned() -> None:
    of = program(nodes=1)
    evicted = ended(of, 0, code=143, disruption="EvictionByEvictionAPI: Eviction API: evicting")
    status = plan(replace(broken(of, evicted), nodes_cordoned=frozenset({"node-0"})), NOW).status

    assert (status.failure.reason, status.failure.message) == (Reason.NODE_DRAINED, "node node-0 is being drained")


def test_a_pod_that_is_taken_away_has_its_node_asked_for_while_it_still_saves() -> None:
    of = program(nodes=1)
    leaving = pod(of, 0, deletion_deadline=NOW + 30, disruption="EvictionByEvictionAPI: evicting")

    assert plan(broken(of, leaving), NOW).lookups == (ReadNode(name="node-0"),)


def test_what_asked_the_ranks_to_stop_is_the_cause_and_what_they_saved_is_told() -> None:
    """A rank that had saved its work was once said to have been deleted by somebody, with nothing saved."""
    of = job(nodes=2)
    evicted = ended(of, 1, code=75, disruption="PreemptionByScheduler: preempting", ended_seen=NOW)
    seen = broken(of, evicted)
    made = plan(seen, NOW)
    assert (made.status.failure.reason, made.status.failure.node) == (Reason.PREEMPTED, "node-1")
    seen = with_status(seen, made.status)
    assert deleted(plan(seen, NOW)) == {"job-1-0": None}  # with time to save as well

    saved = replace(seen, pods=(ended(of, 0, code=75, message="checkpointStep=52"), evicted))
    status = plan(saved, NOW + 1).status
    assert (status.failure.reason, status.failure.checkpoint_step) == (Reason.PREEMPTED, 52)
    assert "was preempted in attempt 1: preempting; it had saved step 52" in sentence(status.failure)


def test_a_pod_that_went_faster_than_a_pass_is_known_by_what_it_showed_last() -> None:
    of = program(nodes=2)
    last = ended(of, 1, code=143, disruption="PreemptionByScheduler: preempting", deletion_deadline=NOW + 9)
    seen = running(of)
    status = plan(replace(seen, pods=seen.pods[:1], vanished=(last,)), NOW).status

    assert (status.failure.reason, status.failure.node, status.failure.exit_code) == (Reason.PREEMPTED, "node-1", 143)


@pytest.mark.parametrize(
    ("pod_changes", "words"),
    [
        (
            {"code": 128, "exit_reason": "StartError", "message": START_ERROR},
            'could not start in attempt 1: exec: "trian":',
        ),
        ({"code": 137, "exit_reason": "OOMKilled"}, "ran out of memory in attempt 1: it was OOMKilled: raise"),
        (
            {"code": 143, "deletion_deadline": NOW + 9},
            "was deleted in attempt 1: the operator did not delete it",
        ),
        (
            {"code": 143, "disruption": "EvictionByEvictionAPI: Eviction API: evicting"},
            "was evicted in attempt 1: Eviction",
        ),
        (
            {
                "code": 1,
                "message": raising("RuntimeError: [/pytorch/unbound_buffer.cc:78] Timed out waiting 8000ms for recv"),
            },
            "timed out waiting for other ranks in attempt 1: RuntimeError: Timed out waiting 8000ms for recv",
        ),
    ],
)
def test_the_sentence_says_what_happened_to_the_rank(pod_changes, words) -> None:
    of = program(nodes=1, restart={"maxRestarts": 0})
    made = plan(broken(of, ended(of, 0, **pod_changes)), NOW)

    assert words in sentence(made.status.failure)


def test_every_reason_for_trouble_is_a_class() -> None:
    harmless = {
        *(Reason.CREATING, Reason.STARTING, Reason.STOPPING, Reason.BACKING_OFF, Reason.RUNNING, Reason.FINISHING),
        *(Reason.SUSPENDED, Reason.SUCCEEDED, Reason.SPEC_CHANGED),
    }

    assert {row.reason for row in CLASSES} == set(Reason) - harmless
