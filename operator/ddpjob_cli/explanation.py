"""Why a job waits or failed, in sections of text. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpjob_cli.local_runs import INTERRUPTED, how_to_continue
from ddpjob_cli.rendering import address, local_run, managed_elsewhere, no_status, restarts_so_far, state
from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.failure.classes import KINDS
from ddpjob_operator.reference.advice import ADVICE
from ddpjob_operator.reference.remedies import OF_PROGRAMS, SILENT, remedy_for

if TYPE_CHECKING:
    from ddpjob.client import Job, JobEvent, LogLine, Pod

_MAX_PODS = 8
_MAX_EVENTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A title and lines of text below it."""

    title: str
    lines: tuple[str, ...]


def explained(
    job: "Job", pods: "Sequence[Pod]" = (), events: "Sequence[JobEvent]" = (), log: "Sequence[LogLine]" = ()
) -> list[Section]:
    """What happens, why, the evidence for it, and what to do.

    Args:
        job: The job.
        pods: Pods of its current attempt.
        events: Events of the job and its pods, oldest first.
        log: The last lines of the rank that caused the last failure.
    """
    status = job.status
    reason = _reason(job)
    sections = [Section(title="What happened" if job.finished else "What happens", lines=(_state(job),))]
    if job.spec_error:
        sections.append(Section(title="The spec cannot be read", lines=(job.spec_error,)))
    if status.failure and not job.succeeded:
        sections.append(Section(title="Last failure", lines=tuple(_failure(job))))
    if log:
        sections.append(Section(title=f"Last lines of {log[-1].pod}", lines=tuple(line.text for line in log)))
    current = [pod for pod in pods if pod.replacement >= status.replacement(pod.rank)]
    waiting = [pod for pod in current if pod.state not in ("Running", "Succeeded")] if not job.finished else []
    if waiting:
        shown = [_pod(pod) for pod in waiting[:_MAX_PODS]]
        more = [f"and {len(waiting) - _MAX_PODS} more"] if len(waiting) > _MAX_PODS else []
        sections.append(Section(title="Pods that do not run", lines=(*shown, *more)))
    # The operator's last event repeats the message of the status.
    warnings = [event for event in events if event.type == "Warning" and event.message != status.message][-_MAX_EVENTS:]
    if warnings and not job.succeeded:
        lines = tuple(f"{event.object}: {event.reason}: {event.message}" for event in warnings)
        sections.append(Section(title="Warnings", lines=lines))
    sections.append(Section(title="What to do", lines=tuple(_advice(job, reason))))
    return sections


def _reason(job: "Job") -> str:
    """The reason that explains most: of a failed or restarting job that of the failure."""
    status = job.status
    current = status.reason or ""
    if status.failure and (job.failed or current == Reason.BACKING_OFF) and current not in KINDS:
        return status.failure.reason
    return current


def _state(job: "Job") -> str:
    if managed_elsewhere(job) and not job.status.phase:
        return f"{job.namespace}/{job.name} has no status: {no_status(job)}. Look at the log of that controller"
    if not job.status.phase:
        return (
            f"{job.namespace}/{job.name} has no status: no operator has acted on it. Check that one runs and watches this"
            " namespace: ddpjob doctor"
        )
    message = job.status.message or "no message"
    phase, reason = state(job)
    attempt = f" in attempt {job.status.attempt}"
    named = "" if attempt in message else attempt
    return f"{job.namespace}/{job.name} is {phase}{f' ({reason})' if reason else ''}{named}: {message}"


def _failure(job: "Job") -> list[str]:
    failure = job.status.failure
    assert failure is not None, "the caller has checked it"
    facts = (
        ("class", failure.reason),
        ("attempt", failure.attempt),
        ("rank", failure.global_rank),
        ("node rank", failure.rank),
        ("pod", failure.pod),
        ("node", failure.node),
        ("exit code", failure.exit_code),
        ("signal", failure.signal),
        ("message", failure.message or None),
        ("time", failure.time),
    )
    lines = [f"{name}: {value}" for name, value in facts if value is not None]
    kind = KINDS.get(failure.reason)
    if kind and not job.finished:
        lines.append(f"consequence: {kind.value}")
    return [*lines, f"restarts so far: {restarts_so_far(job.status)}"]


def _pod(pod: "Pod") -> str:
    where = f" on {pod.node}" if pod.node else ""
    code = "" if pod.exit_code is None else f", exit code {pod.exit_code}"
    return f"node rank {pod.rank} ({pod.name}{where}): {pod.state}{code}{': ' + pod.message if pod.message else ''}"


def _advice(job: "Job", reason: str) -> list[str]:
    if job.phase == INTERRUPTED:
        return [how_to_continue(job.body)]
    text = next((advice for known, advice in ADVICE.items() if known == reason), "")
    failure = job.status.failure
    if failure and reason == failure.reason in OF_PROGRAMS:
        silent = SILENT if reason == Reason.PROGRAM_ERROR and not failure.message else ""
        text = remedy_for(failure.message) or silent or text
    if text.endswith("`."):  # a command at the end is copied with what follows it
        text = text[:-1]
    if local_run(job):  # a job of a cluster has to make place for the next one of its name
        text = text.replace("delete and apply the job", "run the job again")
    lines = [text.replace("NAME", address(job)).replace("`", "")] if text else []
    if job.spec_error:
        lines.append("Upgrade the operator or this command if they are older than the job, or correct the spec.")
    return lines or [f"Look at the events and the operator's log: ddpjob events {address(job)}"]
