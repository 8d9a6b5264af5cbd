"""Which failure of a gang is its cause, of what class it is, and how many logs are read to find out."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ddpjob_operator.api.names import Phase, Reason, contract
from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.actions import ReadLog, ReadNode
from ddpjob_operator.core.failure.cause import ECHO_WAIT_SECONDS, MAX_LOGS_READ, pods_with_logs_in_use, wanted_logs
from ddpjob_operator.core.failure.classes import CLASSES
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.model import NO_LOG
from ddpjob_operator.core.plan import plan
from support.builders import (
    ECHO,
    NOW,
    TRACEBACK,
    broken,
    crashed,
    deleted,
    ended,
    in_attempt,
    job,
    observed,
    pod,
    program,
    reconciled,
    running,
    updated,
)

PAIR = program(nodes=2)
SINGLE = program(nodes=1)
WITHOUT_RESTARTS = program(nodes=1, restart={"maxRestarts": 0})


def raising(exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "t.py", line 1\n{exception}\n'


TIMED_OUT = raising("RuntimeError: [/pytorch/unbound_buffer.cc:78] Timed out waiting 8000ms for recv")
BAD_COMMAND = {
    "code": 128,
    "exit_reason": "StartError",
    "message": "failed to create containerd task: runc create failed: unable to start container process:"
    ' exec: "trian": executable file not found in $PATH',
}
KILLED_UNDER_TORCHRUN = (
    "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 30744)\n"
)
#: What torchrun of torch 2.15 ends with, with exit code 1, when it gets SIGTERM.
TORCHRUN_STOPPED = raising("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15")
PAST_ITS_DEADLINE: dict[str, Any] = {"reason": "DeadlineExceeded", "active_deadline_seconds": 3600}
EVICTED: dict[str, Any] = {"code": 143, "disruption": "EvictionByEvictionAPI: Eviction API: evicting"}


def test_an_echo_is_the_cause_only_if_no_other_rank_explains_it_in_time() -> None:
    seen = broken(PAIR, crashed(PAIR, message=ECHO, ended_seen=NOW))
    made = plan(seen, NOW)
    assert (made.status.attempt, made.wake_at) == (1, NOW + ECHO_WAIT_SECONDS)
    assert plan(seen, NOW + 2).status.failure.reason == Reason.COLLECTIVE_ERROR
    alone = broken(SINGLE, crashed(SINGLE, message=ECHO, ended_seen=NOW))
    assert plan(alone, NOW).status.failure.reason == Reason.COLLECTIVE_ERROR, "no other rank can explain it"


def test_of_two_ranks_that_failed_at_the_same_time_the_first_one_is_the_cause() -> None:
    seen = broken(PAIR, crashed(PAIR, 1), crashed(PAIR, 0))
    for pods in (seen.pods, tuple(reversed(seen.pods))):
        assert plan(replace(seen, pods=pods), NOW).status.failure.rank == 0


def test_a_program_error_is_the_cause_of_echoes_and_time_outs_that_came_before_it() -> None:
    of = program(nodes=3)
    waited = crashed(of, 0, message=TIMED_OUT, ended_seen=NOW - 5)
    lost = crashed(of, 1, message=ECHO, ended_seen=NOW - 4)
    cause = crashed(of, 2, ended_seen=NOW)
    for echoes in ([waited, lost], [waited], [lost]):
        failure = plan(broken(of, *echoes, cause), NOW).status.failure
        assert (failure.rank, failure.reason) == (2, Reason.PROGRAM_ERROR)
    lost_first = crashed(of, 1, message=ECHO, ended_seen=NOW - 6)
    for echo in (lost, lost_first):
        assert plan(broken(of, waited, echo), NOW).status.failure.reason == Reason.COLLECTIVE_TIMEOUT


@pytest.mark.parametrize(
    ("pod_changes", "reason"),
    [
        ({"code": 137}, Reason.KILLED),
        ({"code": 137, "message": raising("ValueError: skipped")}, Reason.KILLED),
        ({"code": 1, "exit_reason": "OOMKilled"}, Reason.OUT_OF_MEMORY),
        ({"code": 137, "exit_reason": "OOMKilled"}, Reason.OUT_OF_MEMORY),
        (EVICTED, Reason.EVICTED),
        ({"code": 137, "reason": "Evicted"}, Reason.EVICTED),
        ({"code": 143, "deletion_deadline": NOW + 9}, Reason.POD_DELETED),
        ({"code": 143, "disruption": "PreemptionByScheduler: preempting"}, Reason.PREEMPTED),
        ({"code": 143, "disruption": "DeletionByTaintManager: taint"}, Reason.POD_DISRUPTED),
        ({"code": 143, "reason": "Terminated"}, Reason.NODE_DRAINED),
        ({"code": 137, "exit_reason": "ContainerStatusUnknown"}, Reason.POD_DISRUPTED),  # the node came back without it
        (BAD_COMMAND, Reason.BAD_COMMAND),
        ({**BAD_COMMAND, "message": "nvidia-container-cli: timed out"}, Reason.CONTAINER_CONFIG),
        ({"code": 127}, Reason.PROGRAM_ERROR),
        ({"code": 1, "message": raising("torch.OutOfMemoryError: CUDA out of memory. Tried")}, Reason.OUT_OF_MEMORY),
        ({"code": 1, "message": TIMED_OUT}, Reason.COLLECTIVE_TIMEOUT),
        ({"code": 1, "message": raising("RuntimeError: Connection closed by peer")}, Reason.COLLECTIVE_ERROR),
        ({"code": 134, "message": "Watchdog caught collective operation timeout: WorkNCCL"}, Reason.COLLECTIVE_TIMEOUT),
        ({"code": 134, "message": "free(): invalid pointer"}, Reason.KILLED),
        ({"code": 134, "message": raising("ValueError: boom") + "terminate called\n"}, Reason.PROGRAM_ERROR),
        ({"code": 1, "message": KILLED_UNDER_TORCHRUN}, Reason.KILLED),
        ({"code": 0, **PAST_ITS_DEADLINE}, Reason.POD_DEADLINE),
        ({"code": 143, **PAST_ITS_DEADLINE}, Reason.POD_DEADLINE),
        ({"code": 137, **PAST_ITS_DEADLINE}, Reason.POD_DEADLINE),
        ({"code": 139, **PAST_ITS_DEADLINE}, Reason.KILLED),  # a segmentation fault is no answer to a stop
        ({"code": 1, **PAST_ITS_DEADLINE}, Reason.PROGRAM_ERROR),
        ({"code": 1, "message": TORCHRUN_STOPPED, **PAST_ITS_DEADLINE}, Reason.POD_DEADLINE),
        ({"code": 1, "message": TORCHRUN_STOPPED}, Reason.PROGRAM_ERROR),
        ({"code": 137, "exit_reason": "OOMKilled", **PAST_ITS_DEADLINE}, Reason.OUT_OF_MEMORY),
        # The operator set this deadline after the program had failed, since a sidecar ran on.
        ({"code": 137, **PAST_ITS_DEADLINE, "active_deadline_seconds": 1}, Reason.KILLED),
    ],
)
def test_every_end_has_its_class(pod_changes, reason) -> None:
    status = plan(broken(SINGLE, ended(SINGLE, 0, **pod_changes)), NOW).status
    assert status.failure.reason == reason
    if reason == Reason.POD_DISRUPTED:
        assert status.restarts.counted == 0


def test_a_program_that_torch_aborted_after_an_exception_ended_by_that_exception() -> None:
    status = plan(broken(SINGLE, ended(SINGLE, 0, code=134, message=raising("ValueError: boom"))), NOW).status
    assert status.message.endswith("ended with exit code 134 (SIGABRT) in attempt 1: ValueError: boom")


def test_a_pod_past_the_deadline_of_its_template_names_that_deadline() -> None:
    status = plan(broken(SINGLE, ended(SINGLE, 0, code=143, **PAST_ITS_DEADLINE)), NOW).status
    assert status.restarts.counted == 1
    assert status.message.endswith("was ended in attempt 1: it ran longer than activeDeadlineSeconds of its pod (3600)")


@pytest.mark.parametrize(
    ("code", "of_trainer"),
    [
        (contract.EXIT_BAD_CONFIG, Reason.BAD_CONFIG),
        (contract.EXIT_HUNG, Reason.HUNG),
        (contract.EXIT_OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
    ],
)
def test_the_trainers_exit_codes_mean_nothing_in_other_programs(code, of_trainer) -> None:
    for of, reason in ((job(nodes=1), of_trainer), (SINGLE, Reason.PROGRAM_ERROR)):
        assert plan(broken(of, ended(of, 0, code=code, message="rank 0\nno")), NOW).status.failure.reason == reason


def test_a_shortage_that_the_trainer_finds_before_training_is_restarted_and_counted() -> None:
    of = job(nodes=1)
    message = "rank 0\npreflight: rank 0 (pod job-1-0 on node n): /checkpoints has 0 MiB free for checkpoints"
    status = plan(broken(of, ended(of, 0, code=contract.EXIT_PROGRAM_ERROR, message=message)), NOW).status
    assert (status.attempt, status.restarts.counted) == (2, 1)
    assert "/checkpoints has 0 MiB free" in status.message


def test_a_job_with_rules_for_exit_codes_waits_for_the_log_that_shows_the_code_of_the_rank_under_torchrun() -> None:
    of = program(nodes=1, restart={"rules": [{"exitCodes": [137], "action": "Fail"}]})
    seen = broken(of, ended(of, 0, code=1))
    made = plan(seen, NOW)
    assert (made.status.attempt, made.lookups) == (1, (ReadLog(pod="job-1-0", uid="pod-uid-1-0"),))
    status = plan(replace(seen, logs={"pod-uid-1-0": end_of_log(KILLED_UNDER_TORCHRUN)}), NOW).status
    assert (status.attempt, status.phase, status.failure.exit_code) == (1, Phase.FAILED, 137)


def test_the_log_of_an_end_without_a_message_is_read_before_the_job_fails() -> None:
    of = WITHOUT_RESTARTS
    seen = broken(of, ended(of, 0, code=1))
    made = plan(seen, NOW)
    assert (made.status.finished, made.lookups) == (False, (ReadLog(pod="job-1-0", uid="pod-uid-1-0"),))
    assert (
        plan(replace(seen, logs={"pod-uid-1-0": end_of_log(TRACEBACK)}), NOW).status.failure.message
        == "ValueError: boom"
    )
    assert plan(replace(seen, logs={"pod-uid-1-0": NO_LOG}), NOW).status.phase == Phase.FAILED, "the log cannot be read"


def test_a_restart_does_not_wait_for_a_log_which_completes_the_record_later() -> None:
    seen = reconciled(broken(PAIR, ended(PAIR, 1, code=1)))
    assert (seen.job.status.attempt, seen.job.status.failure.message) == (2, "")
    status = plan(replace(seen, logs={"pod-uid-1-1": end_of_log(TRACEBACK)}), NOW + 1).status
    assert [status.failure.message, status.attempts[-1].message] == 2 * ["ValueError: boom"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("rank 0\n" + TRACEBACK, "ValueError: boom"),
        ('rank 0\nrk(x)\n  File "/app/t.py", line 3, in g\n    raise E\nmine.LateError: no', "mine.LateError: no"),
        ("rank 0\ncheckpoint at step 4: seed was 0", "checkpoint at step 4: seed was 0"),
    ],
)
def test_the_message_that_the_trainer_wrote_is_reported_without_its_rank(message, expected) -> None:
    of = job(nodes=1)
    assert plan(broken(of, crashed(of, message=message)), NOW).status.failure.message == expected


def test_an_eviction_from_a_cordoned_node_is_a_drain() -> None:
    seen = replace(broken(SINGLE, ended(SINGLE, 0, **EVICTED)), nodes_cordoned=frozenset({"node-0"}))
    failure = plan(seen, NOW).status.failure
    assert (failure.reason, failure.message) == (Reason.NODE_DRAINED, "node node-0 is being drained")


def test_the_node_of_an_evicted_pod_is_looked_up_while_the_pod_still_saves() -> None:
    leaving = pod(SINGLE, 0, deletion_deadline=NOW + 30, disruption=EVICTED["disruption"])
    assert plan(broken(SINGLE, leaving), NOW).lookups == (ReadNode(name="node-0"),)


def test_a_preemption_that_made_all_ranks_save_and_stop_is_the_cause_and_the_saved_step_is_reported() -> None:
    """A rank that had saved its work was once said to have been deleted by somebody, with nothing saved."""
    of = job(nodes=2)
    evicted = ended(of, 1, code=75, disruption="PreemptionByScheduler: preempting", ended_seen=NOW)
    seen = reconciled(broken(of, evicted))
    assert (seen.job.status.failure.reason, seen.job.status.failure.node) == (Reason.PREEMPTED, "node-1")
    assert deleted(plan(seen, NOW)) == {"job-1-0": None}, "rank 0 has time to save as well"
    saved = replace(seen, pods=(ended(of, 0, code=75, message="checkpointStep=52"), evicted))
    failure = plan(saved, NOW + 1).status.failure
    assert (failure.reason, failure.checkpoint_step) == (Reason.PREEMPTED, 52)
    assert "was preempted in attempt 1: preempting; it had saved step 52" in failure_sentence(failure)


def test_a_pod_that_disappeared_between_two_reconciles_is_judged_by_its_last_state() -> None:
    last = ended(PAIR, 1, code=143, disruption="PreemptionByScheduler: preempting", deletion_deadline=NOW + 9)
    seen = running(PAIR)
    failure = plan(replace(seen, pods=seen.pods[:1], vanished=(last,)), NOW).status.failure
    assert (failure.reason, failure.node, failure.exit_code) == (Reason.PREEMPTED, "node-1", 143)


@pytest.mark.parametrize(
    ("pod_changes", "text"),
    [
        (BAD_COMMAND, 'could not start in attempt 1: exec: "trian":'),
        ({"code": 137}, "was killed by signal 9 (SIGKILL)"),
        ({"code": 137, "exit_reason": "OOMKilled"}, "ran out of memory in attempt 1: it was OOMKilled: raise"),
        ({"code": 143, "deletion_deadline": NOW + 9}, "was deleted in attempt 1: the operator did not delete it"),
        (EVICTED, "was evicted in attempt 1: Eviction"),
        (
            {"code": 1, "message": TIMED_OUT},
            "timed out waiting for other ranks in attempt 1: RuntimeError: Timed out waiting 8000ms for recv",
        ),
    ],
)
def test_the_sentence_says_what_happened_to_the_rank(pod_changes, text) -> None:
    failed = ended(WITHOUT_RESTARTS, 0, **pod_changes)
    failure = plan(broken(WITHOUT_RESTARTS, failed), NOW).status.failure
    assert text in failure_sentence(failure)
    assert failure.signal == failed.exit.signal


def test_every_reason_for_trouble_is_a_class() -> None:
    harmless = {
        *(Reason.CREATING, Reason.STARTING, Reason.STOPPING, Reason.BACKING_OFF, Reason.RUNNING, Reason.FINISHING),
        *(Reason.SUSPENDED, Reason.SUCCEEDED, Reason.SPEC_CHANGED, Reason.RESIZED, Reason.RESTARTED_IN_PLACE),
    }
    assert {row.reason for row in CLASSES} == set(Reason) - harmless


def test_a_bounded_number_of_logs_is_read_however_ranks_end() -> None:
    of, random = program(nodes=64), Random(7)  # noqa: S311 no secret
    ranks = random.sample(range(64), 64)
    pods = [ended(of, rank, code=1, ended_seen=NOW + number) for number, rank in enumerate(ranks)]
    wanted: set[str] = set()
    for num_ended in range(1, 65):
        shown = random.sample(pods[:num_ended], num_ended)
        seen = observed(of, *shown, logs=dict.fromkeys(wanted, NO_LOG))
        wanted |= {lookup.uid for lookup in wanted_logs(seen, shown)}
    assert wanted == {pod.uid for pod in pods[:MAX_LOGS_READ]}


def test_what_a_log_has_shown_is_kept_when_its_pod_is_gone() -> None:
    """Its node may be removed while other ranks still run. The log cannot be read again, and holds the last progress."""
    of = in_attempt(program(nodes=2), 3)
    seen = observed(of, pod(of, 1, 3), vanished=(ended(of, 0, 3), ended(of, 0, 1, uid="of an earlier attempt")))
    assert pods_with_logs_in_use(seen) == {"pod-uid-3-0", "pod-uid-3-1"}


def test_a_rank_that_left_early_with_exit_code_0_is_named_as_the_cause_of_lost_connections() -> None:
    left, lost = ended(PAIR, 1, ended_seen=NOW - 5), crashed(PAIR, 0, message=ECHO, ended_seen=NOW - 3)
    status = plan(broken(PAIR, left, lost), NOW).status
    assert status.failure.reason == Reason.COLLECTIVE_ERROR
    assert status.failure.message.startswith(
        "rank 1 (pod job-1-1) had ended with exit code 0 while others still trained"
    )
    later = plan(broken(PAIR, ended(PAIR, 1, ended_seen=NOW), lost), NOW).status
    assert later.failure.message == "RuntimeError: Connection closed by peer"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "[rank3]: " + TRACEBACK.rstrip().replace("\n", "\n[rank3]: "),
            "Rank 3 (node rank 1, pod job-1-1, node node-1) ended",
        ),
        (TRACEBACK, "A rank of pod job-1-1 (node rank 1, node node-1) ended"),
        ("rank 2\n" + TRACEBACK, "Rank 2 (node rank 1, pod job-1-1, node node-1) ended"),
        ("x\nddpjob launcher: rank 3 ended with exit code 1\n", "Rank 3 (node rank 1, pod job-1-1, node node-1) ended"),
        # No process of this pod has that rank, so the text is not believed.
        ("rank 0\n" + TRACEBACK, "A rank of pod job-1-1 (node rank 1, node node-1) ended"),
    ],
)
def test_the_sentence_names_the_rank_of_the_process_with_the_node_rank_and_the_pod_next_to_it(
    message, sentence
) -> None:
    of = job(nodes=2, processesPerNode=2, command=["torchrun", "train.py"])
    status = plan(broken(of, ended(of, 1, code=1, message=message)), NOW).status
    assert status.failure.rank == 1
    assert status.message.startswith(sentence)


def test_a_rank_that_the_cluster_took_is_named_by_its_pod_unless_it_has_one_process() -> None:
    of = job(nodes=2, processesPerNode=2, command=["torchrun", "train.py"])
    for job_, sentence in (
        (of, "A rank of pod job-1-1 (node rank 1, node node-1)"),
        (PAIR, "Rank 1 (pod job-1-1, node node-1)"),
    ):
        status = plan(broken(job_, ended(job_, 1, **EVICTED)), NOW).status
        assert status.message.startswith(f"{sentence} was evicted")


@pytest.mark.parametrize(
    ("command", "step", "code", "text", "reason"),
    [
        (
            ["python", "t.py"],
            0,
            2,
            "python: can't open file '/app/t.py': [Errno 2] No such file or directory",
            Reason.BAD_COMMAND,
        ),
        (["python3", "-m", "t"], 0, 1, "/usr/bin/python3: No module named t", Reason.BAD_COMMAND),
        (["python", "t.py"], 0, 1, raising("ModuleNotFoundError: No module named 'x'"), Reason.BAD_CONFIG),
        (["python", "t.py"], 0, 2, "usage: t.py\nt.py: error: unrecognized arguments: --x", Reason.BAD_CONFIG),
        # A shell script may have failed at something before, and a program that has made a step has its modules.
        (["bash", "-c", "…"], 0, 1, raising("ModuleNotFoundError: No module named 'x'"), Reason.PROGRAM_ERROR),
        (["python", "t.py"], 7, 1, raising("ModuleNotFoundError: No module named 'x'"), Reason.PROGRAM_ERROR),
        (["python", "t.py"], 0, 2, "no data", Reason.PROGRAM_ERROR),
        (["env", "A=1", "python", "t.py"], 0, 1, "python: No module named t", Reason.BAD_COMMAND),
        (["sh", "-c", "cd /app && exec python t.py"], 0, 1, "python: No module named t", Reason.BAD_COMMAND),
        (["bash", "-ec", "export A=1\npython t.py"], 0, 1, raising("SyntaxError: x"), Reason.BAD_CONFIG),
        (["sh", "-c", "pip install x; python t.py"], 0, 1, raising("SyntaxError: x"), Reason.PROGRAM_ERROR),
        (["bash", "run.sh"], 0, 127, "bash: run.sh: No such file or directory", Reason.BAD_COMMAND),
        (["sh", "run.sh"], 0, 127, "sh: 0: cannot open run.sh: No such file", Reason.BAD_COMMAND),
        (["bash", "run.sh"], 0, 127, "run.sh: line 3: data.sh: No such file or directory", Reason.PROGRAM_ERROR),
        (["bash", "run.sh"], 0, 1, raising("ModuleNotFoundError: No module named 'x'"), Reason.PROGRAM_ERROR),
        (["python", "t.py"], 0, 1, raising("ImportError: cannot import name 'a' from 'b'"), Reason.BAD_CONFIG),
        (["python", "t.py"], 0, 1, raising("RuntimeError: [a.cc:23] rank < size. 1 vs 1"), Reason.BAD_CONFIG),
        (
            ["python", "t.py"],
            0,
            1,
            raising("ImportError: cannot allocate memory in static TLS block"),
            Reason.PROGRAM_ERROR,
        ),
    ],
)
def test_a_job_ends_after_one_attempt_where_the_message_proves_that_each_ends_alike(
    command, step, code, text, reason
) -> None:
    of = job(nodes=1, command=command)
    seen = updated(broken(of, ended(of, 0, code=code, message=text)), progress=Progress(step=step) if step else None)
    status = plan(replace(seen, logs={"pod-uid-1-0": end_of_log(text)}), NOW).status
    assert (status.failure.reason, status.phase == Phase.FAILED) == (reason, reason != Reason.PROGRAM_ERROR)
    assert ("num_nodes=int(os.environ['NNODES'])" in status.message) == ("rank < size" in text)


#: The kubelet may have lost the state of the container that it has ended.
@pytest.mark.parametrize("exit_reason", ["Error", "ContainerStatusUnknown"])
@pytest.mark.parametrize(
    ("message", "counted"),
    [
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ", 1),
        ('Container trainer exceeded its local ephemeral storage limit "1Gi". ', 1),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ', 1),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 9Mi.", 0),
    ],
)
def test_an_eviction_that_the_pod_itself_has_caused_is_counted_and_names_the_limit(
    message: str, counted: int, exit_reason: str
) -> None:
    evicted = ended(SINGLE, 0, code=137, reason="Evicted", message="", phase="Failed")
    assert evicted.exit is not None
    pod = replace(evicted, message=message, exit=replace(evicted.exit, reason=exit_reason))
    status = plan(broken(SINGLE, pod), NOW).status
    assert (status.restarts.counted, status.failure.reason == Reason.STORAGE_LIMIT) == (counted, bool(counted))
    assert message.strip() in status.failure.message


def test_a_rank_of_the_same_pod_that_left_early_is_named_where_our_launcher_says_so() -> None:
    of = job(nodes=1, processesPerNode=2, command=["python", "-m", "ddpjob.launch", "train.py"])
    text = ECHO + "ddpjob launcher: rank 0 ended with exit code 1; rank 1 had ended with exit code 0 before\n"
    failure = plan(broken(of, ended(of, 0, code=1, message=text)), NOW).status.failure
    assert failure.message.startswith("rank 1 had ended with exit code 0 while others still trained")
    assert failure.global_rank == 0
