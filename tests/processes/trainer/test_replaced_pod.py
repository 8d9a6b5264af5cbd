"""A pod that is lost and replaced while the others wait: only time is lost, and the bits are those of an undisturbed run.

Each launcher is a pod of one process.
"""

import os
import signal
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from test_session import assert_same, saved
from training_runs import TRAINER, Run, finished, ranks_by_hand, started

DIGITS = ("epochs=8", "logEverySteps=5")
JOB = {contract.DDPJOB_UID: "u1", contract.DDPJOB_ATTEMPT: "1"}
SUPERVISED = JOB | {contract.DDPJOB_IN_PLACE_RESTARTS: "20", contract.DDPJOB_REPLACEMENT_SECONDS: "200"}
SCRIPT = (sys.executable, "-m", "ddpjob.launch", str(Path(__file__).with_name("session_script.py")))
FROM_MEMORY = "in memory: no step is lost"


class Gang:
    """Pods of one process each."""

    def __init__(self, folder, num_pods: int, stack: ExitStack) -> None:
        self._folder, self._stack, self._variables = folder, stack, ranks_by_hand(num_pods)

    def pod(self, rank: int, replacement: int = 0, command: tuple[str, ...] = TRAINER, **more: str) -> Run:
        variables = self._variables[rank] | SUPERVISED | more
        if replacement:
            variables[contract.DDPJOB_REPLACEMENT] = str(replacement)
        folder = self._folder / f"{rank}-{replacement}"
        keys = DIGITS if command == TRAINER else ()
        return self._stack.enter_context(started(folder, *keys, ranks=0, command=command, environ=variables))


@contextmanager
def gang(folder, num_pods: int = 2):
    with ExitStack() as stack:
        yield Gang(folder, num_pods, stack)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("undisturbed"), *DIGITS, ranks=2)


def test_pods_that_are_killed_or_asked_to_stop_are_replaced_without_a_lost_step(undisturbed, tmp_path):
    """Without a checkpoint, so that only memory can hold the state."""
    with gang(tmp_path) as pods:
        first, second = pods.pod(0), pods.pod(1)
        first.wait_for(r"(?m)^epoch \d+ step 20/")
        second.process.kill()
        replaced = pods.pod(1, 1)
        first.wait_for(rf"(?s){FROM_MEMORY}.*\nepoch \d+ step 80/")
        replaced.process.send_signal(signal.SIGTERM)
        assert replaced.wait() == contract.EXIT_TERMINATED, replaced.text
        last = pods.pod(1, 2)
        assert [first.wait(), last.wait()] == [0, 0], first.text
    assert first.text.count(FROM_MEMORY) == 2
    assert (first.weights, first.losses) == (undisturbed.weights, undisturbed.losses)


def test_a_pod_that_was_given_up_does_not_join_again(undisturbed, tmp_path):
    """Its node did not respond for a time: the others notice only that another pod begins in its place."""
    with gang(tmp_path) as pods:
        first, lost = pods.pod(0), pods.pod(1)
        first.wait_for(r"(?m)^epoch \d+ step 20/")
        stopped = [lost.process.pid, *lost.rank_pids()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        replacement = pods.pod(1, 1)
        first.wait_for(FROM_MEMORY)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        assert lost.wait() == contract.EXIT_FENCED, lost.text
        assert [first.wait(), replacement.wait()] == [0, 0], first.text
    assert "has replaced this one" in lost.message
    assert (first.weights, first.losses) == (undisturbed.weights, undisturbed.losses)


def test_a_pod_that_is_asked_to_stop_while_its_ranks_wait_for_another_reports_what_they_had_saved(tmp_path):
    """As when two nodes are drained one after the other."""
    saving = {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    with gang(tmp_path) as pods:
        first = pods.pod(0, command=SCRIPT, **saving)
        pods.pod(1, command=SCRIPT, **saving, FAULT="pod is stopped", FAULT_STEP="20")
        first.wait_for("another pod was asked to stop; all ranks start again in place")
        first.process.send_signal(signal.SIGTERM)
        assert first.wait() == contract.EXIT_CHECKPOINTED, first.text
    assert first.message == f"{contract.TERMINATION_CHECKPOINT_PREFIX}{saved(tmp_path)['step']}"


def test_ranks_whose_pod_is_not_replaced_in_time_end(tmp_path):
    with gang(tmp_path) as pods:
        first = pods.pod(0, **{contract.DDPJOB_REPLACEMENT_SECONDS: "1"})
        second = pods.pod(1)
        first.wait_for(r"(?m)^epoch \d+ step 20/")
        second.process.kill()
        assert first.wait() == contract.EXIT_PEER_LOST, first.text
    assert first.message.startswith("rank 0 lost a peer")


def test_a_script_with_a_session_goes_on_from_the_newest_checkpoint_with_the_same_bits(tmp_path):
    """Only the lost pod knew its generators of random numbers. It is stopped first, and its successor is killed."""
    whole = tmp_path / "whole"
    with gang(whole) as pods:  # of two pods, too: how many threads a rank has changes the bits
        saving = {contract.DDPJOB_CHECKPOINT_DIR: str(whole / "checkpoints")}
        assert [run.wait() for run in [pods.pod(rank, command=SCRIPT, **saving) for rank in range(2)]] == [0, 0]
    saving = {contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    with gang(tmp_path) as pods:
        first = pods.pod(0, command=SCRIPT, **saving)
        stopped = pods.pod(1, command=SCRIPT, **saving, FAULT="pod is stopped", FAULT_STEP="20")
        assert stopped.wait() == contract.EXIT_CHECKPOINTED, stopped.text
        killed = pods.pod(1, 1, command=SCRIPT, **saving, FAULT="pod is killed", FAULT_STEP="40")
        assert killed.wait() == -signal.SIGKILL, killed.text
        last = pods.pod(1, 2, command=SCRIPT, **saving)
        assert [first.wait(), last.wait()] == [0, 0], first.text
    assert first.text.count("resumed from step") == 2
    assert_same(saved(tmp_path), saved(whole))
