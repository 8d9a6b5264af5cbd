"""Why an attempt ended: the class of each rank's end, and which of them is the cause.

When a rank goes down the others lose their connections to it and end as well, often first. So class beats time: an end
that echoes another rank's is never the cause while any rank has another reason, and where an echo is all there is yet,
we wait a moment for a better one.
"""

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import Failure
from ddpjob_operator.core.last_words import is_echo, last_exception, last_line, printable, worker_exit
from ddpjob_operator.core.model import Observed, Pod, ReadLog
from ddpjob_operator.core.times import rfc3339

#: How long an echo waits for a better cause: a container's end can show a second late in its pod's status.
ECHO_WAIT_SECONDS = 1.5
#: Most logs read for one failure; a gang's echoes say nothing new.
MAX_LOGS_READ = 8

#: Reasons that say that the cluster, not the program, ended a rank.
INFRASTRUCTURE = frozenset({Reason.POD_DELETED, Reason.POD_DISRUPTED, Reason.NODE_LOST})

#: What a step number may be: longer digits are no step and would not fit into a status.
_SAVED_STEP = re.compile(rf"(?:^|\s){re.escape(contract.TERMINATION_CHECKPOINT_PREFIX)}(\d{{1,15}})(?:\s|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of one rank's pod."""

    rank: int
    reason: Reason
    words: str
    exit_code: int | None = None
    signal: int | None = None
    pod: str
    node: str | None = None
    seen: float
    """When it was seen, in seconds since the epoch."""

    @property
    def is_echo(self) -> bool:
        """Whether it only repeats another rank's end."""
        return self.reason == Reason.COLLECTIVE_ERROR

    @property
    def may_be_explained(self) -> bool:
        """Whether another rank's end, a moment later, may say what this one means.

        An echo has its cause elsewhere; a stop with a checkpoint is one only if rank 0 says what it saved.
        """
        stopped = self.exit_code == contract.EXIT_CHECKPOINTED and self.reason != Reason.STOPPED_WITH_CHECKPOINT
        return self.is_echo or stopped


def has_ended(pod: Pod, now: float) -> bool:
    """Whether this pod's end ends the attempt.

    A pod that is only being deleted still saves its work; it ends when its program does or its grace has passed.
    """
    if pod.succeeded:
        return False
    overdue = pod.deletion_deadline is not None and pod.deletion_deadline < now
    return pod.exit is not None or pod.phase == "Failed" or overdue


def end_of(seen: Observed, pod: Pod, now: float) -> End:
    """The end of a pod for which `has_ended` holds, with its class."""
    log = seen.logs.get(pod.uid, "")
    reason = _reason(seen, pod, log)
    worker = worker_exit(log or pod.exit.message) if pod.exit and pod.exit.code == 1 else None
    exit_code, signal_number = (worker.code, worker.signal) if worker else _exit_of(pod)
    if worker and worker.signal and reason == Reason.PROGRAM_ERROR:
        reason = Reason.KILLED
    return End(
        rank=pod.rank,
        reason=reason,
        words=_words(seen, pod, reason, signal_number),
        exit_code=exit_code,
        signal=signal_number,
        pod=pod.name,
        node=pod.node,
        seen=pod.ended_seen or now,
    )


def missing_end(rank: int, pod: str, now: float) -> End:
    """The end of a rank whose pod is gone although nobody of ours deleted it."""
    return End(rank=rank, reason=Reason.POD_DELETED, words="the pod is gone", pod=pod, seen=now)


def cause_of(ends: Iterable[End]) -> End | None:
    """The end that explains the others: the earliest that is no echo, else the earliest."""
    return min(ends, key=lambda end: (end.is_echo, end.seen, end.rank), default=None)


def settled_at(cause: End, num_running: int) -> float:
    """From when the cause may be acted on; it waits while ranks that still run may explain it."""
    return cause.seen + ECHO_WAIT_SECONDS if cause.may_be_explained and num_running else cause.seen


def wanted_logs(seen: Observed, pods: Iterable[Pod]) -> tuple[ReadLog, ...]:
    """The logs that would tell more about the ends of these pods and have not been read."""
    spec = seen.job.spec
    assert spec is not None, "only a job with a valid spec has pods that end"
    silent = [pod for pod in pods if pod.exit and pod.exit.code and not _explains_itself(spec, pod)]
    return tuple(ReadLog(pod=p.name, uid=p.uid) for p in silent[:MAX_LOGS_READ] if p.uid not in seen.logs)


def saved_step(pod: Pod) -> int | None:
    """The step that a rank's last words say it saved when it stopped on request."""
    match = _SAVED_STEP.search(pod.exit.message) if pod.exit else None
    return int(match[1]) if match else None


def record(end: End, attempt: int, now: float) -> Failure:
    """The end as the status shows it."""
    return Failure(
        attempt=attempt,
        rank=end.rank,
        pod=end.pod,
        node=end.node,
        exit_code=end.exit_code,
        signal=end.signal,
        reason=end.reason,
        message=end.words,
        time=rfc3339(now),
    )


def sentence(failure: Failure) -> str:
    """The failure in one sentence for people."""
    if failure.rank is None:
        return f"Attempt {failure.attempt} ended: {failure.message}"
    where = f"Rank {failure.rank} (pod {failure.pod}" + (f", node {failure.node})" if failure.node else ")")
    if failure.signal is not None:
        how = f"died of signal {failure.signal} ({_signal_name(failure.signal)})"
    elif failure.exit_code is not None:
        how = f"ended with exit code {failure.exit_code}"
    else:
        how = "was lost"
    said = f": {failure.message}" if failure.message else ""
    return f"{where} {how} in attempt {failure.attempt}{said}"


def _reason(seen: Observed, pod: Pod, log: str) -> Reason:
    """The class of an end, most certain evidence first."""
    if pod.node in seen.nodes_gone:
        return Reason.NODE_LOST
    stopped = pod.exit is not None and pod.exit.code == contract.EXIT_CHECKPOINTED
    if stopped and _has_saved_more(seen, pod.attempt):
        return Reason.STOPPED_WITH_CHECKPOINT
    if pod.exit is not None and pod.exit.reason == "ContainerStatusUnknown":  # its node went away and came back
        return Reason.POD_DISRUPTED
    if pod.disruption or pod.reason in ("Evicted", "Preempting", "NodeAffinity", "NodeShutdown", "Terminated"):
        return Reason.POD_DISRUPTED
    # A pod of an earlier attempt was deleted by us; that it ended by itself first still tells why.
    by_itself = pod.attempt < seen.job.status.attempt and pod.exit is not None and pod.exit.signal is None
    if pod.deletion_deadline is not None and not by_itself:
        return Reason.POD_DELETED
    if pod.exit is None:  # the kubelet refused or ended the pod before its program ran
        return Reason.POD_DISRUPTED
    return _reason_of_exit(seen.job.spec, pod, log)


def _reason_of_exit(spec: DDPJobSpec | None, pod: Pod, log: str) -> Reason:
    assert pod.exit is not None, "asked about a container that has ended"
    trainer = spec is not None and spec.trainer is not None
    if pod.exit.reason == "OOMKilled":
        return Reason.OUT_OF_MEMORY
    if trainer and pod.exit.code == contract.EXIT_PEER_LOST:
        return Reason.COLLECTIVE_ERROR
    if trainer and pod.exit.code == contract.EXIT_BAD_CONFIG:
        return Reason.BAD_CONFIG
    if is_echo(last_exception(pod.exit.message) or last_exception(log)):
        return Reason.COLLECTIVE_ERROR
    return Reason.KILLED if pod.exit.signal else Reason.PROGRAM_ERROR


def _has_saved_more(seen: Observed, attempt: int) -> bool:
    """Whether rank 0 of the attempt says that it saved a step beyond that of every earlier stop.

    Without this a program that always stops with nothing new would restart for ever without being counted.
    """
    steps = [saved_step(pod) for pod in seen.pods if pod.rank == 0 and pod.attempt == attempt]
    past = [failure for failure in seen.job.status.attempts if failure.attempt < attempt]
    before = [failure.checkpoint_step for failure in past if failure.checkpoint_step is not None]
    return any(step is not None and step > max(before, default=-1) for step in steps)


def _exit_of(pod: Pod) -> tuple[int | None, int | None]:
    return (pod.exit.code, pod.exit.signal) if pod.exit else (None, None)


def _explains_itself(spec: DDPJobSpec, pod: Pod) -> bool:
    """Whether the termination message holds all that the log could add.

    The built-in trainer writes it on purpose. For other programs it is the end of the log: enough for plain python,
    while torchrun fills it with a table of its own.
    """
    assert pod.exit is not None, "asked about a container that has ended"
    if pod.exit.signal:
        return True
    return bool(pod.exit.message) if spec.trainer else bool(last_exception(pod.exit.message))


def _words(seen: Observed, pod: Pod, reason: Reason, signal_number: int | None) -> str:
    """What is worth telling of the end, in one line."""
    if reason == Reason.NODE_LOST:
        return f"node {pod.node} stopped answering"
    if reason == Reason.POD_DISRUPTED:
        cluster_reason = pod.reason or (pod.exit.reason if pod.exit else "")
        return printable(pod.disruption or f"{cluster_reason}: {pod.message}".strip(": "))
    if reason == Reason.POD_DELETED:
        return "the pod was deleted"
    if reason == Reason.OUT_OF_MEMORY:
        return "the kernel killed a process for memory (OOMKilled): raise resources.limits.memory or use less"
    assert pod.exit is not None, "every other class is made from an exit"
    log, message = seen.logs.get(pod.uid, ""), pod.exit.message
    if said := last_exception(log) or last_exception(message):
        return said
    if signal_number:
        return ""
    trainer = seen.job.spec is not None and seen.job.spec.trainer is not None
    if trainer:  # a traceback longer than the message lost its head, its last line is the exception
        return last_line(message) if '\n  File "' in message else printable(message)
    return last_line(log) or last_line(message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
