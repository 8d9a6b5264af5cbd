"""The small launcher: starts the ranks of a pod, forwards signals, and exits with the code of the first failure.

It restarts nothing, since the gang is restarted as a whole, by the operator. It works as PID 1 (reaps what it inherits),
and its children die with it even when it is killed by SIGKILL. It never loads torch.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ddpjob_ranks import contract, prctl, termination
from ddpjob_ranks.launch import identity
from ddpjob_ranks.launch.identity import Node, Worker

#: Surviving ranks get this long to end after SIGTERM. A rank that is blocked in a collective does not handle it.
SURVIVOR_GRACE_SECONDS = 5.0
#: After EXIT_CHECKPOINTED of one rank the others end by themselves within this time.
ORDERLY_GRACE_SECONDS = 60.0
#: When all ranks are to start again, each has this long to save what it holds.
SAVE_SECONDS = 20.0
#: A request to stop waits so long until the ranks that start again have the state that was kept in memory, and can save it. It is
#: a part of the time that a pod has by default to end (30 s), of which the checkpoint needs some, too.
STOP_SECONDS = 10.0
#: Time between two looks whether they have it.
LOOK_SECONDS = 0.05
#: What follows the ranks of other nodes is started again so long after its end.
FOLLOW_SECONDS = 1.0
#: A rank that lost its peer ends within milliseconds of it: wait this long for the failure that caused it.
CAUSE_WAIT_SECONDS = 1.5

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: Real-time signals have numbers only.
SIGNAL_NAMES = {int(known): known.name for known in signal.Signals}


def run(node: Node, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `command` once for each worker of the node, to the end of all of them.

    Returns:
        0 if all succeeded, else the exit code of the first rank that failed by itself (128 + n for signal n), where a
        rank that only lost its peer counts as first only when no other rank failed.
    """
    # Signals are blocked and taken from sigtimedwait: no handler, no race, and PID 1 gets them too.
    with signals_blocked() as old_mask:
        set_up_child = dies_with_this_process(old_mask)
        processes = []  # which Popen would wait for when it is deleted

        def start(worker: Worker) -> int:
            process = subprocess.Popen(
                command,
                env={**environ, **worker.environment()},
                preexec_fn=set_up_child,  # safe: this process has a single thread
                process_group=0,  # Ctrl-C reaches the launcher alone, which passes it on once
            )
            processes.append(process)
            return process.pid

        ranks = Ranks(node, start)
        ranks.wait()
        for process in processes:
            process.returncode = 0  # Popen must not wait for the pid again
        return ranks.exit_code


@contextmanager
def signals_blocked() -> Iterator[set[signal.Signals | int]]:
    """Block what `Ranks` takes from sigtimedwait; yields the mask from before. To be the last thing before the exit."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *FORWARDED})
    try:
        yield old_mask
    finally:
        for number in FORWARDED:  # a signal that arrives now must not replace the exit code
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


@contextmanager
def with_free_port(environ: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """The variables, with a free port for ranks that all run here and were given none, so that runs do not collide.

    The port is held by a socket that is bound and does not listen, so that nobody else is given it before rank 0, which
    sets SO_REUSEADDR too, opens it.

    Raises:
        ConfigError: as `identity.node`.
    """
    is_given = contract.MASTER_ADDR in environ or contract.MASTER_PORT in environ
    if is_given or not _all_run_here(identity.node(environ)):
        yield environ
        return
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield {**environ, contract.MASTER_PORT: str(holder.getsockname()[1])}


def _all_run_here(node: Node) -> bool:
    """Not where srun starts one launcher for each task, whose ranks derive the same port from its variables."""
    return len(node.workers) == node.workers[0].world_size


class Ranks:
    """The running processes of one node, and how the ones that have ended did so.

    Args:
        start: Starts the process of a worker; returns its pid.
        end_generation: Called when a rank has failed, with its exit code and with whether the ranks of another node have begun the next
            generation already. If the caller is to start all ranks again, it asks them to save what they hold and to end, and returns True.
            Otherwise the failure ends the other ranks of the node.
        server: The pid of another process that the ranks need.
        follow: Starts a process that ends with exit code 0 when the ranks of another node have failed, and with EXIT_PEER_LOST when
            the ranks here will notice themselves what it has found; returns its pid, or None if that is impossible. After any
            other end, such as that by a signal, it is started again.
        can_stop: Whether the ranks lose nothing if they are asked to stop.
        stop_at: When to pass on, at the latest, a request to stop that arrived before these ranks were started; None without one.
    """

    def __init__(
        self,
        node: Node,
        start: Callable[[Worker], int],
        end_generation: Callable[[int, bool], bool] = lambda *_: False,
        server: int | None = None,
        follow: Callable[[], int | None] = lambda: None,
        can_stop: Callable[[], bool] = lambda: True,
        stop_at: float | None = None,
    ) -> None:
        self._can_stop = can_stop
        self.stop_at = stop_at
        self._follow = follow
        self._follower = follow()
        self.running = {start(worker): worker for worker in node.workers}
        self._succeeded: list[int] = []
        self.exit_code = 0
        self.cause = ""
        """How the first rank that failed by itself ended."""
        self.to_be_restarted = False
        """Whether the ranks end in order to be started again."""
        self.are_stopped = False
        """Whether the ranks were asked to stop for good."""
        self._others_have_begun = False
        self.kill_at: float | None = None
        self.terminate_at: float | None = None
        self.follow_at: float | None = None
        self._end_generation = end_generation
        self._may_restart = True
        self._server = server

    def wait(self) -> None:
        """Wait until all of them have ended."""
        while self.running:
            deadline = min(self.kill_at or self.terminate_at or math.inf, self.follow_at or math.inf)
            most = 3600.0 if self.stop_at is None else LOOK_SECONDS
            timeout = min(most, max(0.0, deadline - time.monotonic()))
            received = signal.sigtimedwait({signal.SIGCHLD, *FORWARDED}, timeout)
            if received is None:
                self._enforce_deadlines()
            elif received.si_signo == signal.SIGCHLD:
                self._reap()
            elif received.si_signo == signal.SIGTERM:
                self.stop_at = self.stop_at or time.monotonic() + STOP_SECONDS
            elif received.si_signo in (signal.SIGINT, signal.SIGHUP):
                self._stop(signal.Signals(received.si_signo))
            else:
                self._send(signal.Signals(received.si_signo))
            if self.stop_at is not None and (
                time.monotonic() >= self.stop_at or (not self.to_be_restarted and self._can_stop())
            ):
                self.stop_at = None
                self._stop(signal.SIGTERM)
        if self._follower is not None:
            os.kill(self._follower, signal.SIGKILL)

    def _stop(self, signal_number: signal.Signals) -> None:
        """Ask the ranks to stop for good."""
        self.are_stopped = True
        self._may_restart = self.to_be_restarted = False
        self._send(signal_number)

    def _reap(self) -> None:
        """Read the exit status of every process that has ended, as PID 1 also of those that other processes left."""
        while self.running:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            if ended.si_pid in self.running:
                _kill_group(ended.si_pid)
            pid, status = os.waitpid(ended.si_pid, 0)
            if pid in self.running:
                self._ended(self.running.pop(pid), os.waitstatus_to_exitcode(status))
            elif pid == self._server:
                self._may_restart = self.to_be_restarted = False
                code, how = end_of(os.waitstatus_to_exitcode(status))
                self.exit_code = self.exit_code or code
                termination.write(f"the process that serves the store of all ranks {how}", echo=False)
                self.terminate_at = time.monotonic()
            elif pid == self._follower:
                self._follower = None
                if os.waitstatus_to_exitcode(status) not in (contract.EXIT_SUCCESS, contract.EXIT_PEER_LOST):
                    self.follow_at = time.monotonic() + FOLLOW_SECONDS
                elif status == 0 and self.kill_at is None:
                    self._others_have_begun = True
                    self.exit_code = self.exit_code or contract.EXIT_PEER_LOST
                    self.cause = self.cause or "a rank of another pod failed"
                    now = time.monotonic()
                    # Ranks that were asked to stop, or are done, may have left the others before those started again.
                    in_order = self.terminate_at or now + ORDERLY_GRACE_SECONDS
                    self.terminate_at = now if self._may_restart else in_order
            self._enforce_deadlines()

    def _ended(self, worker: Worker, returncode: int) -> None:
        now = time.monotonic()
        if returncode == 0:
            self._may_restart = False  # the training is over, as ranks leave together
            self._succeeded.append(worker.rank)
            return
        code, how = end_of(returncode)
        by_itself = self.kill_at is None or (self.to_be_restarted and self.kill_at < math.inf)
        if by_itself and self.exit_code in (contract.EXIT_SUCCESS, contract.EXIT_PEER_LOST):
            self.exit_code = code
            self.cause = f"rank {worker.rank} {how}"
            if returncode < 0:
                termination.write(f"rank {worker.rank}\n{how.removeprefix('was ')}", echo=False)
        if self.to_be_restarted:
            return
        early = f"; rank {self._succeeded[0]} had ended with exit code 0 before" if self._succeeded else ""
        print(f"ddpjob launcher: rank {worker.rank} ended with exit code {code}{early}", file=sys.stderr, flush=True)
        if code == contract.EXIT_PEER_LOST and self.running:
            self.terminate_at = self.terminate_at or now + CAUSE_WAIT_SECONDS
        elif self._ends_generation():
            return
        elif code == contract.EXIT_CHECKPOINTED:
            self.terminate_at = self.terminate_at or now + ORDERLY_GRACE_SECONDS
        else:
            self.terminate_at = min(self.terminate_at or now, now)

    def _ends_generation(self) -> bool:
        """Whether all ranks start again, which they then have been asked to make possible."""
        self._may_restart = self._may_restart and self._end_generation(self.exit_code, self._others_have_begun)
        if self._may_restart:
            self.to_be_restarted = True
            self.kill_at = time.monotonic() + SAVE_SECONDS
            self._send(signal.SIGCONT)  # a rank that was stopped holds the state, too
        return self._may_restart

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        if self.follow_at is not None and now >= self.follow_at:
            self.follow_at, self._follower = None, self._follow()
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = math.inf
            self._send(signal.SIGKILL)
        elif self.kill_at is None and self.terminate_at is not None and now >= self.terminate_at:
            self.terminate_at = None
            if self._ends_generation():
                return
            self.kill_at = now + SURVIVOR_GRACE_SECONDS
            self._send(signal.SIGTERM)

    def _send(self, signal_number: signal.Signals) -> None:
        # Popen.send_signal would first take the exit status of one that has ended, which is for _reap.
        for pid in self.running:
            os.kill(pid, signal_number)


def _kill_group(pid: int) -> None:
    """Kill what a rank that has ended leaves behind in its process group, of which it is the leader, such as data workers.

    They would keep the memory of its GPU and its connections: a worker of torch looks every 5 s whether its rank still runs, and
    not at all while it reads. To be called before the exit status is read, which frees the number of the group.
    """
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def end_of(returncode: int) -> tuple[int, str]:
    """The exit code of a process as a shell has it, and how it ended, for a sentence; `returncode` is -n for signal n."""
    if returncode >= 0:
        return returncode, f"ended with exit code {returncode}"
    return 128 - returncode, f"was killed by {SIGNAL_NAMES.get(-returncode, f'signal {-returncode}')}"


def dies_with_this_process(signal_mask: set[signal.Signals | int]) -> Callable[[], None]:
    """For the child between fork and exec: restore the signal mask and ask to be killed when the launcher dies."""
    parent = os.getpid()

    def set_up_child() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
        prctl.die_with_parent()
        if os.getppid() != parent:  # it died before that
            os._exit(128 + signal.SIGKILL)

    return set_up_child
