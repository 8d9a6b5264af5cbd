"""Jobs as text for people: pure functions from the client's data to words, tables and lines."""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ddpjob_cli.local_runs import ANNOTATION, INTERRUPTED, how_to_continue
from ddpjob_operator.api import names
from ddpjob_operator.api.names import Phase
from ddpjob_operator.api.status import DDPJobStatus, Progress, TimeSpent
from ddpjob_operator.core.times import duration, epoch_seconds
from ddpjob_operator.core.untrusted import visible

if TYPE_CHECKING:
    from rich.text import Text

    from ddpjob.client import Job, JobEvent, Pod

PHASE_STYLES = {
    Phase.PENDING: "yellow",
    Phase.RUNNING: "cyan",
    Phase.RESTARTING: "yellow",
    Phase.SUSPENDED: "magenta",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
}
#: The colour of a rank is the same in every command.
RANK_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan", "bright_magenta")
NOTHING = "-"


def phase_style(phase: str | None) -> str:
    """The style of a phase; that of unknown ones is bold."""
    return next((style for name, style in PHASE_STYLES.items() if name == phase), "bold")


def rank_style(rank: int) -> str:
    """The style of a rank."""
    return RANK_STYLES[rank % len(RANK_STYLES)]


def state(job: "Job") -> tuple[str, str]:
    """Phase and reason; the reason is empty where it repeats the phase."""
    phase = "Deleting" if job.deleting else job.phase
    reason = job.status.reason or ""
    return phase, "" if reason == phase else reason


def seconds_since(time_text: str | None, now: float | None = None) -> float | None:
    """Seconds since a time of the API; None if there is none."""
    if not time_text:
        return None
    try:
        return (time.time() if now is None else now) - epoch_seconds(time_text)
    except ValueError:
        return None


def age(time_text: str | None, now: float | None = None) -> str:
    """The time since then, such as 3m20s."""
    seconds = seconds_since(time_text, now)
    return NOTHING if seconds is None else duration(seconds)


def number(value: float | None) -> str:
    """A number with three significant digits, such as 0.0948 or 12,300."""
    if value is None:
        return NOTHING
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def steps(progress: Progress | None) -> str:
    """The step and the number of steps, such as 120/400 (30%)."""
    if progress is None:
        return NOTHING
    if not progress.total_steps:
        return str(progress.step)
    return f"{progress.step}/{progress.total_steps} ({100 * progress.step // progress.total_steps}%)"


def facts(progress: Progress, *, finished: bool = False) -> list[str]:
    """What is known of the training, for one line; of a finished one without the time left."""
    found = [f"step {steps(progress)}"]
    if progress.epoch is not None:
        found.append(f"epoch {progress.epoch}")
    if progress.loss is not None:
        found.append(f"loss {number(progress.loss)}")
    if progress.headline is not None:
        found.append(progress.headline)
    if progress.samples_per_second is not None:
        found.append(f"{number(progress.samples_per_second)} samples/s")
    if progress.eta is not None and not finished:
        found.append(f"ETA {progress.eta}")
    if progress.checkpoint_step is not None:
        found.append(f"checkpoint at step {progress.checkpoint_step}")
    return found


def metrics(progress: Progress | None) -> str:
    """All named metrics in one line, such as accuracy 99.7 · val/loss 0.011; empty where one fact says it all."""
    named = (progress.metrics if progress else None) or {}
    return " · ".join(f"{name} {value:.4g}" for name, value in named.items()) if len(named) > 1 else ""


def goodput(spent: TimeSpent) -> str:
    """How the job spent its time, in one line."""
    parts = (
        ("training", spent.training_seconds),
        ("queued", spent.queued_seconds),
        ("starting", spent.starting_seconds),
        ("lost", spent.lost_seconds),
    )
    percent = "" if spent.goodput_percent is None else f"{number(spent.goodput_percent)} % · "
    return percent + ", ".join(
        f"{name} {duration(seconds)}" for name, seconds in parts if seconds or name == "training"
    )


def job_row(job: "Job") -> "tuple[str | Text, ...]":
    """Name, phase, reason, ready, attempt, step and ETA, for the table of `list`."""
    from rich.text import Text

    status = job.status
    progress = status.progress
    phase = "Deleting" if job.deleting else job.phase
    return (
        local_run(job) or job.name,
        Text(phase, style=phase_style(phase)),
        status.reason or NOTHING,
        status.ready or NOTHING,
        str(status.attempt),
        steps(progress),
        (progress.eta if progress and not job.finished else None) or NOTHING,
    )


def summary(status: DDPJobStatus) -> list[tuple[str, str]]:
    """What the training reached, and how the time was spent; one line for each thing that is known."""
    lines = []
    if status.progress:
        lines.append(("training", " · ".join(facts(status.progress, finished=True))))
    if named := metrics(status.progress):
        lines.append(("metrics", named))
    if status.time:
        lines.append(("goodput", goodput(status.time)))
    so_far = restarts_so_far(status)
    if so_far != restarts_so_far(DDPJobStatus()):
        lines.append(("restarts", so_far))
    return lines


def restarts_so_far(status: DDPJobStatus) -> str:
    """The restarts so far, in one line."""
    parts = [f"{status.restarts.counted} counted", f"{status.restarts.infrastructure} by the cluster"]
    if status.progress and status.progress.in_place_restarts:
        cause = f" (last: {status.progress.in_place_cause})" if status.progress.in_place_cause else ""
        parts.append(f"{status.progress.in_place_restarts} in place in this attempt{cause}")
    if status.restarts.pod_replacements:
        parts.append(f"{status.restarts.pod_replacements} of these only replaced lost pods")
    return ", ".join(parts)


def current_attempt_has_failed(status: DDPJobStatus) -> bool:
    """Whether the last failure ended the current attempt, so that its line says how."""
    return any(failure.attempt == status.attempt and not failure.replaced for failure in status.attempts)


def message_of(job: "Job", pod: "Pod") -> str:
    """What there is to say about a rank: its message, or why it was stopped."""
    if pod.message or pod.exit_code != names.contract.EXIT_TERMINATED:
        return pod.message
    ends = [failure for failure in job.status.attempts if failure.attempt == pod.attempt and not failure.replaced]
    if ends and ends[-1].rank is not None and ends[-1].rank != pod.rank:
        rank = ends[-1].global_rank
        cause = f"a rank of {ends[-1].pod}" if rank is None else f"rank {rank}"
        return f"stopped because of {cause} ({ends[-1].reason})"
    return "stopped on request (SIGTERM)"


def managed_elsewhere(job: "Job") -> str:
    """The controller that runs the job in place of the operator; empty where the operator does."""
    controller = (job.body.get("spec") or {}).get("managedBy") or names.CONTROLLER
    return "" if controller == names.CONTROLLER else str(controller)


def scheduling(job: "Job") -> str:
    """What schedules the pods together, and the queue of the job; empty where nothing does."""
    provider = job.status.scheduling.provider if job.status.scheduling else ""
    queue = ((job.body.get("spec") or {}).get("scheduling") or {}).get("queueName")
    parts = [provider if provider != "none" else "", f"queue {queue}" if queue else ""]
    return visible(", ".join(part for part in parts if part))


def no_status(job: "Job") -> str:
    """Why a job has no status yet."""
    if controller := managed_elsewhere(job):
        return f"{controller} runs this job (spec.managedBy) and has not written a status yet"
    return "the operator has not acted on it yet"


def attempt_lines(job: "Job") -> list[str]:
    """Each known attempt in one line, oldest first: when it ended, and why."""
    lines = []
    for failure in job.status.attempts:
        rank = "" if failure.global_rank is None else f" rank {failure.global_rank},"
        where = "" if failure.rank is None else f"{rank} node rank {failure.rank}"
        node = f" on {failure.node}" if failure.node else ""
        code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
        text = f": {failure.message}" if failure.message else ""
        end = "; the pod was replaced and the attempt continued" if failure.replaced else ""
        lines.append(f"{failure.attempt}  {failure.time}  {failure.reason}{where}{node}{code}{text}{end}")
    current = job.status
    if not current_attempt_has_failed(current):
        start = current.attempt_start_time or NOTHING
        lines.append(f"{current.attempt}  {start}  {job.phase}")
    return lines


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """The ranks of a list such as 0,3-5; None for all.

    Raises:
        ValueError: the text is no such list.
    """
    if not text:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--rank {text}: {part.strip()!r} is not a rank or a range; give ranks such as 0,3-5")
        start, end = int(first), int(last or first)
        if end < start or end - start >= 10000:
            raise ValueError(
                f"--rank {text}: the range {part.strip()!r} is empty or too long; give ranks such as 0,3-5"
            )
        ranks |= set(range(start, end + 1))
    return frozenset(ranks)


def parse_seconds(text: str | None, option: str) -> float | None:
    """The seconds of 90, 90s, 15m, 2h, 1h30m or 3d; None where nothing is given.

    Raises:
        ValueError: the text is no such span.
    """
    if text is None:
        return None
    seconds, rest = 0.0, text.strip()
    if rest.replace(".", "", 1).isdecimal():
        return float(rest)
    while rest:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789."))]
        unit = rest[len(digits) : len(digits) + 1]
        if not digits.replace(".", "", 1).isdecimal() or unit not in ("s", "m", "h", "d"):
            raise ValueError(f"{option} {text} is not a span of time; give one such as 90s, 15m, 1h30m or 2d")
        seconds += float(digits) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
        rest = rest[len(digits) + 1 :]
    if not text.strip():
        raise ValueError(f"{option} is empty; give a span of time such as 90s, 15m, 1h30m or 2d")
    return seconds


def address(job: "Job") -> str:
    """How a command names the job: by its name and namespace, or by the directory of a local run."""
    return local_run(job) or f"{job.name} -n {job.namespace}"


def local_run(job: "Job") -> str:
    """The directory of a local run; empty for a job of a cluster."""
    return str((job.body["metadata"].get("annotations") or {}).get(ANNOTATION, ""))


def next_command(job: "Job", pods: "Sequence[Pod]" = ()) -> str:
    """The command that most likely helps now, or what continues an interrupted run."""
    name = address(job)
    if job.phase == INTERRUPTED:
        return how_to_continue(job.body)
    if job.failed:
        return f"ddpjob logs {name} --failed"
    if job.succeeded:
        return f"ddpjob logs {name} --tail 20"
    if job.phase == Phase.SUSPENDED:
        return f"ddpjob resume {name}"
    if not job.status.phase and not managed_elsewhere(job):
        return f"ddpjob doctor -n {job.namespace}"
    if job.phase == Phase.RUNNING or any(pod.started for pod in pods):
        return f"ddpjob logs {name} -f"
    return f"ddpjob events {name}"


def event_lines(events: "Iterable[JobEvent]", now: float | None = None) -> list[str]:
    """Each event in one line."""
    return [
        f"{age(event.time, now):>7}  {event.type:<7}  {event.reason:<20}  {event.object}  {event.message}"
        + (f" ({event.count} times)" if event.count > 1 else "")
        for event in events
    ]


def outcome(job: "Job") -> str:
    """The state of a job in one sentence."""
    status: DDPJobStatus = job.status
    took = ""
    if status.start_time and status.completion_time:
        took = f" after {duration(epoch_seconds(status.completion_time) - epoch_seconds(status.start_time))}"
    why = f": {status.message}" if status.message else ""
    return f"{job.namespace}/{job.name} {job.phase.lower() if job.finished else f'is {job.phase}'}{took}, attempt {status.attempt}{why}"
