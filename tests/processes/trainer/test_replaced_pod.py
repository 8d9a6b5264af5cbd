"""A pod that is lost and replaced while the others wait: only time is lost, and the bits are those of an undisturbed run.

Each launcher is a pod of one process.
"""

import json
import os
import re
import signal
import socket
import socketserver
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from ddpjob_ranks import contract, generation
from ddpjob_ranks.errors import ReplacedError
from ddpjob_ranks.launch import identity, rendezvous
from support import forked_ranks
from support.gang_of_pods import JOB, Gang
from support.processes import DEADLINE_SECONDS
from support.programs import PROGRAMS, gated_rank
from support.saved_states import assert_same, newest_state
from support.training_runs import Run, ranks_by_hand
from testbed import free_ports

DIGITS = ("epochs=4", "logEverySteps=5")
SCRIPT = (sys.executable, "-m", "ddpjob.launch", str(PROGRAMS / "session_script.py"))
FROM_MEMORY = "in memory: no step is lost"
GATED = (sys.executable, "-m", "ddpjob.launch", gated_rank.FILE)


class GatedGang(Gang):
    """The digits. The last rank of a gated pod waits at a step of the first generation and at one of the second."""

    def gated_pod(self, rank: int, replacement: int = 0, **more: str) -> Run:
        return self.pod(rank, replacement, command=GATED, GATES="22,82", **more)


@contextmanager
def gang(folder, num_pods: int = 2):
    with ExitStack() as stack:
        yield GatedGang(folder, num_pods, stack, *DIGITS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return forked_ranks.finished(tmp_path_factory.mktemp("undisturbed"), *DIGITS, ranks=2)


@pytest.mark.parametrize("lost", [1, 0])
def test_a_pod_that_is_killed_or_asked_to_stop_is_replaced_without_a_lost_step(undisturbed, tmp_path, lost):
    """Without a checkpoint, so that only memory can hold the state. The launcher of rank 0 served the store."""
    with gang(tmp_path) as pods:
        pod, survivor = pods.gated_pod(lost), pods.gated_pod(1 - lost)
        (pod if lost else survivor).wait_for("gate at step 22")
        pod.process.kill()
        second = pods.gated_pod(lost, 1)
        (second if lost else survivor).wait_for("gate at step 82")
        second.process.send_signal(signal.SIGTERM)
        second.wait_for("SIGTERM received")
        gated_rank.open_gate(tmp_path, 82)
        assert second.wait() == contract.EXIT_TERMINATED, second.text
        last = pods.gated_pod(lost, 2)
        assert [survivor.wait(), last.wait()] == [0, 0], survivor.text + last.text
    of_rank_0 = [survivor] if lost else [pod, second, last]
    assert "".join(run.text for run in of_rank_0).count(FROM_MEMORY) == 2
    assert [joined(run) for run in of_rank_0] == [{0, 1, 2}] if lost else [{0}, {1}, {2}]
    assert of_rank_0[-1].weights == undisturbed.weights
    assert {step: loss for run in of_rank_0 for step, loss in run.losses.items()} == undisturbed.losses
    if lost == 0:
        resumed = [int(re.findall(r"resumed from step (\d+) in memory", run.text)[0]) for run in (second, last)]
        # Ranks differ by one step at most, which is lost if only the lost rank has completed it. A stop is after the same step.
        assert resumed[0] >= max(pod.losses) - 1
        assert resumed[1] >= max(second.losses)


def test_a_pod_that_was_given_up_does_not_join_again(undisturbed, tmp_path):
    """Its node did not respond for a time: the others notice only that another pod begins in its place."""
    with gang(tmp_path) as pods:
        first, lost = pods.gated_pod(0), pods.gated_pod(1)
        lost.wait_for("gate at step 22")
        stopped = [lost.process.pid, *lost.rank_pids()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        replacement = pods.gated_pod(1, 1)
        first.wait_for(FROM_MEMORY)
        gated_rank.open_gate(tmp_path, 22)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        assert lost.wait() == contract.EXIT_FENCED, lost.text
        gated_rank.open_gate(tmp_path, 82)  # only now, as pod 0 serves what says that the lost pod is replaced
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
    assert first.message == f"{contract.TERMINATION_CHECKPOINT_PREFIX}{newest_state(tmp_path)['step']}"


def joined(run: Run) -> set[int]:
    """What rank 0 has reported of the new pods that have joined, in all its progress lines."""
    lines = [line for line in run.text.splitlines() if line.startswith(contract.PROGRESS_PREFIX)]
    shown = [json.loads(line.removeprefix(contract.PROGRESS_PREFIX)) for line in lines]
    return {line.get(contract.PROGRESS_JOINED_REPLACEMENTS, 0) for line in shown}


class Master(socketserver.ThreadingTCPServer):
    """What the master's name is to new connections: the address of a pod of rank 0, here its port. It can change."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), Forwarding)
        self.target = target
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> str:
        return str(self.server_address[1])


class Forwarding(socketserver.BaseRequestHandler):
    server: Master

    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.target)) as there:
            threading.Thread(target=_copy, args=(there, self.request), daemon=True).start()
            _copy(self.request, there)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def test_the_others_leave_a_pod_of_rank_0_that_still_responds_once_the_master_is_another(undisturbed, tmp_path):
    """The cluster has given up its node, where only the rank has stopped: no connection ends, and both pods serve a store."""
    old_port, new_port = free_ports(2)
    with gang(tmp_path) as pods, Master(old_port) as master:
        old = pods.gated_pod(0, MASTER_PORT=str(old_port))
        survivor = pods.gated_pod(1, MASTER_PORT=master.port)
        survivor.wait_for("gate at step 22")
        os.kill(old.pid_of_rank(0), signal.SIGSTOP)
        for step in (22, 82):  # the survivor continues, and waits for the stopped rank
            gated_rank.open_gate(tmp_path, step)
        new = pods.gated_pod(0, 1, MASTER_PORT=str(new_port))
        master.target = new_port
        assert [new.wait(), survivor.wait()] == [0, 0], new.text + survivor.text
        assert old.process.poll() is None, "nothing has ended it"
    assert new.text.count(FROM_MEMORY) == 1
    assert new.weights == undisturbed.weights


def test_a_survivor_waits_for_the_store_of_the_newest_pod_of_rank_0_that_it_knows_of(monkeypatch, capsys):
    worker: Any = identity.resolve(ranks_by_hand(2)[1])
    for name, value in (JOB | {contract.DDPJOB_GENERATION: "2", contract.DDPJOB_REPLACEMENT_SECONDS: "200"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rendezvous, "REPORT_SECONDS", 0.0)
    served = TCPStore("127.0.0.1", worker.master_port, is_master=True, wait_for_workers=False)
    reports = ""
    with ThreadPoolExecutor() as threads:
        joined = threads.submit(rendezvous.open_store_of_attempt, worker, oldest=1)
        for is_set_up, reason in (
            (False, "is not that of this attempt"),
            (True, "is that of a pod of rank 0 that has been replaced"),
        ):
            if is_set_up:
                generation.set_up_store(rendezvous.for_attempt(served), {})
            deadline = time.monotonic() + DEADLINE_SECONDS
            while reason not in reports:
                assert time.monotonic() < deadline, f"no {reason!r} in {reports!r}"
                assert not joined.done(), "it has joined the wrong store"
                reports += capsys.readouterr().err
                time.sleep(0.01)
        generation.set_up_store(rendezvous.for_attempt(served), {contract.DDPJOB_REPLACEMENTS: "0:1"})
        assert joined.result(timeout=DEADLINE_SECONDS)[1] == 1
    assert rendezvous.number_at_master(worker) == 1


def test_a_pod_of_rank_0_that_knows_of_its_successor_ends():
    worker: Any = identity.resolve({**ranks_by_hand(2)[0], contract.DDPJOB_GENERATION: "2"})
    with pytest.raises(ReplacedError, match="has replaced this one"):
        rendezvous.open_store_of_attempt(worker, oldest=1)


WITHOUT_SESSION = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("connected", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
"""


def test_the_successor_of_rank_0_does_not_wait_for_scripts_without_a_session(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_SESSION)
    command = (sys.executable, "-m", "ddpjob.launch", str(script))
    with gang(tmp_path) as pods:
        first, _ = pods.pod(0, command=command), pods.pod(1, command=command)
        first.wait_for("connected")
        first.process.kill()
        successor = pods.pod(0, 1, command=command)
        assert successor.wait() == contract.EXIT_PEER_LOST, successor.text
    assert "none uses ddpjob.session" in successor.message


def test_ranks_whose_pod_is_not_replaced_in_time_end(tmp_path):
    with gang(tmp_path) as pods:
        first = pods.gated_pod(0, **{contract.DDPJOB_REPLACEMENT_SECONDS: "1"})
        second = pods.gated_pod(1)
        second.wait_for("gate at step 22")
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
    assert_same(newest_state(tmp_path), newest_state(whole))
