"""Why an attempt ended: the class of each rank's end, and which of them is the cause.

When a rank goes down the others lose their connections to it and end as well, often first. So class beats time: an end
that echoes another rank's is never the cause while any rank has another reason, and where an echo is all there is yet,
we wait a moment for a better one.
"""

import math
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import MAX_TEXT_LENGTH, DDPJobStatus, Failure
from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.failure.class_of_end import (
    START_REASONS,
    class_of_end,
    could_be_final,
    newly_saved_step,
    said_by,
)
from ddpjob_operator.core.failure.classes import ECHOES, KINDS, TAKEN_AWAY, Kind
from ddpjob_operator.core.failure.messages import end_message
from ddpjob_operator.core.gang import is_current
from ddpjob_operator.core.model import NO_LOG, Observed, Pod
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.core.untrusted import beginning

#: How long an echo waits for a better cause: a container's end can show a second late in its pod's status.
ECHO_WAIT_SECONDS = 1.5
#: Most logs read for one failure; a gang's echoes say nothing new.
MAX_LOGS_READ = 8
#: What a kubelet takes of a log as a termination message is at most 2,048 bytes and 80 lines; white space at its ends is left
#: out here (https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure).
FALLBACK_BYTES = 2000
FALLBACK_LINES = 78


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of one rank's pod."""

    rank: int
    """The node rank."""
    global_rank: int | None = None
    """The rank of the process that ended first; None where only its pod is known."""
    reason: Reason
    message: str
    exit_code: int | None = None
    signal: int | None = None
    pod: str
    node: str | None = None
    seen: float
    """When it was seen, in seconds since the epoch."""

    @property
    def is_echo(self) -> bool:
        """Whether it only follows from another rank's end."""
        return self.reason in ECHOES

    @property
    def may_be_explained(self) -> bool:
        """Whether another rank's end, a moment later, may say what this one means.

        An echo has its cause elsewhere; a stop with a checkpoint is one only if rank 0 reports what it saved.
        """
        stopped = self.exit_code == contract.EXIT_CHECKPOINTED and KINDS[self.reason] == Kind.COUNTED
        return self.is_echo or stopped


def has_ended(pod: Pod, now: float) -> bool:
    """Whether this pod's end ends the attempt.

    A pod that is only being deleted still saves its work; it ends when its program does or its grace has passed.
    """
    if pod.succeeded:
        return False
    overdue = pod.deletion is not None and pod.deletion.deadline < now
    return pod.exit is not None or pod.phase == "Failed" or overdue


def ends_of(observed: Observed, pods: Iterable[Pod], now: float) -> list[End]:
    """The ends of these pods, which have ended or no longer exist, with their classes."""
    ended = tuple(pods)
    saved = {attempt: newly_saved_step(observed, attempt) for attempt in {pod.attempt for pod in ended}}
    return [_end_of(observed, pod, saved[pod.attempt] is not None, now) for pod in ended]


def _end_of(observed: Observed, pod: Pod, gang_has_saved: bool, now: float) -> End:
    log = observed.logs.get(pod.uid, NO_LOG)
    reason = class_of_end(observed, pod, log, gang_has_saved)
    in_init = pod.exit is not None and pod.exit.init_container
    said = NO_LOG if in_init else said_by(observed.job.spec, pod, log)
    worker = said.worker if pod.exit and pod.exit.code == 1 else None
    exit_code, signal_number = (worker.code, worker.signal) if worker else _exit_of(pod)
    if worker and worker.signal and reason == Reason.PROGRAM_ERROR:
        reason = Reason.KILLED
    end = End(
        rank=pod.rank,
        global_rank=global_rank(observed.job.spec, pod.rank, None if reason in TAKEN_AWAY else said.rank),
        reason=reason,
        message=end_message(observed, pod, reason),
        exit_code=exit_code,
        signal=signal_number,
        pod=pod.name,
        node=pod.node,
        seen=(pod.exit.seen if pod.exit else None) or now,
    )
    return end if said.left_early is None or not end.is_echo else _after(f"rank {said.left_early}", end)


def _after(left: str, end: End) -> End:
    """An end that only follows from that of a rank that had left the others."""
    why = f"{left} had ended with exit code 0 while others still trained; all ranks must take the same number of steps"
    return replace(end, message=f"{why}: {end.message}" if end.message else why)


def global_rank(spec: DDPJobSpec | None, node_rank: int, said: int | None) -> int | None:
    """The rank of a process of this node: what the program said of it, if it can be so, or that of the only one."""
    num_processes = spec.processes if spec is not None else 1
    if said is None:
        return node_rank if num_processes == 1 else None
    return said if said // num_processes == node_rank else None


def missing_ends(observed: Observed, names: Mapping[int, str], now: float) -> list[End]:
    """The ends of ranks whose pods no longer exist although the operator did not delete them, by node rank and pod name.

    What this process saw last of such a pod shows how it ended.
    """
    last = {pod.rank: pod for pod in observed.vanished if is_current(pod, observed.job.status)}
    shown = ends_of(observed, (last[rank] for rank in names if rank in last and _shows_its_end(last[rank])), now)
    by_rank = {end.rank: end for end in shown}
    return [
        by_rank.get(rank) or _without_end(observed.job.spec, rank, name, last.get(rank), now)
        for rank, name in names.items()
    ]


def _shows_its_end(pod: Pod) -> bool:
    ended_by_itself = pod.exit is not None and (pod.exit.code != 0 or pod.deletion is None)
    return bool(pod.disruption) or pod.phase == "Failed" or ended_by_itself


def _without_end(spec: DDPJobSpec | None, rank: int, name: str, last: Pod | None, now: float) -> End:
    """The end of a pod that shows none: somebody deleted it."""
    return End(
        rank=rank,
        global_rank=global_rank(spec, rank, None),
        reason=Reason.POD_DELETED,
        message="the operator did not delete it",
        pod=last.name if last is not None else name,
        node=last.node if last is not None else None,
        seen=now,
    )


def cause_of(ends: Iterable[End]) -> End | None:
    """The end that explains the others.

    A rank that was taken away comes before those that stopped with it and saved; what is no echo before what is; a
    time-out before a lost connection, which follows it; then the earliest.
    """
    return min(
        ends,
        key=lambda end: (
            end.is_echo,
            end.reason == Reason.COLLECTIVE_ERROR,
            end.reason == Reason.STOPPED_WITH_CHECKPOINT,
            end.seen,
            end.rank,
        ),
        default=None,
    )


def with_early_success(cause: End, pods: Iterable[Pod]) -> End:
    """An end that only lost its peers, with the rank that had left them: it ended with exit code 0 while this one trained on."""
    gone = [pod for pod in pods if cause.is_echo and pod.succeeded and pod.exit and (pod.exit.seen or 0) <= cause.seen]
    if not gone:
        return cause
    first = min(gone, key=lambda pod: ((pod.exit.seen if pod.exit else None) or 0, pod.rank))
    whose = f"rank {first.rank} (pod {first.name})" if cause.global_rank == cause.rank else f"pod {first.name}"
    return _after(whose, cause)


def decidable_at(cause: End, num_running: int) -> float:
    """When this cause may be decided on: later if ranks that still run may explain it better."""
    return cause.seen + ECHO_WAIT_SECONDS if cause.may_be_explained and num_running else cause.seen


def wanted_logs(observed: Observed, pods: Iterable[Pod]) -> tuple[ReadLog, ...]:
    """The logs that could explain the ends of these pods better and have not been read.

    Those of the ranks that ended first: a rank that ends later never changes which logs are wanted, so that no more than
    `MAX_LOGS_READ` are read for one failure.
    """
    spec = observed.job.spec
    assert spec is not None, "only a job with a valid spec has pods that end"
    silent = [pod for pod in pods if pod.exit and pod.exit.code and not _explains_itself(spec, pod)]
    silent.sort(key=lambda pod: ((pod.exit.seen if pod.exit else None) or math.inf, pod.rank))
    return tuple(_log_of(pod) for pod in silent[:MAX_LOGS_READ] if pod.uid not in observed.logs)


def _log_of(pod: Pod) -> ReadLog:
    container = pod.exit.init_container if pod.exit else ""
    return ReadLog(pod=pod.name, uid=pod.uid, **({"container": container} if container else {}))


def log_may_prove_it(observed: Observed, cause: End) -> bool:
    """Whether a log that is not read yet may prove that each attempt ends in this way."""
    ended = (pod for pod in observed.pods if pod.name == cause.pod and pod.exit is not None)
    is_cut = any(pod.exit and _is_cut(pod.exit.message) for pod in ended)
    return is_cut and cause.reason == Reason.PROGRAM_ERROR and could_be_final(observed, cause.exit_code)


def may_explain_a_failure(status: DDPJobStatus, attempt: int) -> bool:
    """Whether a decision may still need to know how pods of this attempt ended.

    Those of the current attempt, and until it runs those of the attempt before, whose failure may be explained better.
    """
    oldest = status.attempt if status.running_since else status.attempt - 1
    return attempt >= oldest and not status.finished


def pods_with_logs_in_use(observed: Observed) -> frozenset[str]:
    """The uids of the pods whose logs a decision may still need, also of those that are gone and cannot be read again."""
    pods, status = (*observed.pods, *observed.vanished), observed.job.status
    return frozenset(pod.uid for pod in pods if may_explain_a_failure(status, pod.attempt))


def failure_of(observed: Observed, end: End, attempt: int, now: float) -> Failure:
    """The failure record for the status; of a program that stopped on request, with the step that rank 0 reports as saved."""
    stopped = end.exit_code == contract.EXIT_CHECKPOINTED
    return Failure(
        attempt=attempt,
        rank=end.rank,
        global_rank=end.global_rank,
        pod=end.pod,
        node=end.node,
        exit_code=end.exit_code,
        signal=end.signal,
        checkpoint_step=newly_saved_step(observed, attempt) if stopped else None,
        reason=end.reason,
        message=beginning(end.message, MAX_TEXT_LENGTH),
        time=rfc3339(now),
    )


def _exit_of(pod: Pod) -> tuple[int | None, int | None]:
    """Exit code and signal of the program; an init container's say nothing about it."""
    return (pod.exit.code, pod.exit.signal) if pod.exit and not pod.exit.init_container else (None, None)


def _explains_itself(spec: DDPJobSpec, pod: Pod) -> bool:
    """Whether the termination message holds all that the log could add.

    The built-in trainer writes it on purpose. For other programs it is the end of the log: enough for plain python,
    while torchrun fills it with a table of its own.
    """
    assert pod.exit is not None, "the caller passes a pod whose program has ended"
    if pod.exit.reason in START_REASONS:
        return True
    if pod.exit.init_container:
        return bool(pod.exit.message)
    if pod.exit.signal:
        return pod.exit.signal != signal.SIGABRT or bool(pod.exit.message)
    if spec.trainer:
        return bool(pod.exit.message)
    return bool(pod.exit.parsed_message.exception) and not _is_cut(pod.exit.message)


def _is_cut(message: str) -> bool:
    """Whether a termination message is only the end of a log, so that what caused its last exception may be missing."""
    return len(message.encode()) >= FALLBACK_BYTES or message.count("\n") >= FALLBACK_LINES
