"""Local runs in the form in which commands read jobs of a cluster.

`ddpjob run --local` keeps the job and its pods in the directory of the run, next to the logs. A command that gets the path of
that directory in place of the name of a job reads them from there, while the job runs and after it.
"""

import asyncio
import errno
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ddpjob_cli.failures import EXIT_TIMEOUT, CommandError

if TYPE_CHECKING:
    from ddpjob.client import Job, JobEvent, LogLine, Pod
    from ddpjob.client.inspection import RankProgresses, Stacks
    from ddpjob_operator.api.resource import Body
    from ddpjob_operator.api.status import DDPJobStatus
    from ddpjob_operator.transport.execution import Execution

#: The directory of all runs, in the current directory.
RUNS: Final = Path(".ddpjob/runs")
OBJECTS: Final = "objects.json"
#: The file that a running run has locked.
RUNNING: Final = "running"
#: So often a command that waits looks at a run.
POLL_SECONDS: Final = 0.5
#: Phase and reason of a run that a signal ended before its job; a job of a cluster never has it.
INTERRUPTED: Final = "Interrupted"
#: An annotation that names the directory of the run, for what refers to the job.
ANNOTATION: Final = "ddpjob.dev/local-run"
#: What the directory of a run adds to the name of the job.
_TIME: Final = re.compile(r"-(\d{8}-\d{6})(?:-(\d{1,9}))?$")
_LOG: Final = re.compile(r"(\d{1,9})-(\d{1,9})(?:-r?(\d{1,9}))?")
#: A longer line of a log comes in parts, as from a cluster; of larger records the rest is not read.
_MAX_LINE: Final = 64 * 1024
_MAX_OBJECTS: Final = 2**28


def is_run(job: str) -> bool:
    """Whether this is the path of a run and not the name of a job, which has no separator and begins with a letter."""
    return os.sep in job or job.startswith(".")


def run_of(job: str) -> Path | None:
    """The newest run of this job in the current directory, or else the newest of those whose names begin with that of the job."""
    newest = _newest(RUNS / job)
    if newest.exists():
        return newest
    return max(RUNS.glob(f"{glob.escape(job)}*"), key=lambda run: run.stat().st_mtime, default=None)


def write_objects(folder: Path, job: "Body", pods: "Sequence[Body]") -> None:
    """Keep the job and its pods for `RunDirectory`. Their environment may hold secrets, so only the user may read them."""
    new = folder / f"{OBJECTS}.new"
    new.touch(mode=0o600)
    new.write_text(json.dumps({"job": job, "pods": pods}), encoding="utf-8")
    new.replace(folder / OBJECTS)


@contextmanager
def marked_as_running(folder: Path) -> Iterator[None]:
    """While the context lasts, `pid_of` knows that the run goes on: the kernel ends the lock, however this process ends."""
    with (folder / RUNNING).open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(os.getpid()))
        with suppress(OSError):  # on a full disk, which ends no training
            file.flush()
        yield


def pid_of(folder: Path) -> int | None:
    """The process that runs it; None if the run has ended."""
    try:
        with (folder / RUNNING).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None
    except (OSError, ValueError):  # a run of somebody else, or of an earlier release
        pass
    return None


def interrupted(status: "DDPJobStatus", folder: Path, job: str, cause: str) -> "DDPJobStatus":
    """The status of a run that a signal ended before its job, with the step that rank 0 saved as its last act."""
    from ddpjob_operator.core.failure.class_of_end import saved_step
    from ddpjob_operator.core.render.pods import pod_name

    said = folder / f"logs/{pod_name(job, status.attempt, 0, status.replacement(0))}.termination"
    step = saved_step(said.read_text(encoding="utf-8", errors="replace")) if said.exists() else None
    progress = status.progress
    if progress:
        reached = {} if step is None else {"checkpoint_step": step, "step": max(step, progress.step)}
        progress = progress.model_copy(update={"eta": None, "eta_seconds": None, **reached})
        step = progress.checkpoint_step
    message = f"{cause} ended the run" + ("" if step is None else f", with a checkpoint of step {step}")
    end = {"phase": INTERRUPTED, "reason": INTERRUPTED, "message": message, "progress": progress}
    return status.model_copy(update={**end, "conditions": [], "ready": None, "ready_replicas": None})


def how_to_continue(job: "Body") -> str:
    """What to do after a run that a signal has ended."""
    checkpoint = (job.get("spec") or {}).get("checkpoint") or {}
    if not checkpoint:
        return "Start the same command again; it begins at step 0, since the job has no checkpoint"
    if "uri" in checkpoint or "hostPath" in (checkpoint.get("volume") or {}):
        return f"Start the same command again; under the name {job['metadata']['name']} it continues from the newest checkpoint"
    return (
        "Start the same command again; it begins at step 0, since the checkpoints are in the directory of this run: set"
        " checkpoint.volume to a hostPath to continue"
    )


class RunDirectory:
    """The directory of one local run, with those methods of a client that read a job. Names are ignored: it has one job."""

    def __init__(self, path: Path) -> None:
        """A path without the time at its end means the newest run of that job, and `.` the newest run of all.

        Raises:
            CommandError: the path is not that of a run.
        """
        is_newest = path == Path() and not (path / "logs").is_dir()
        self._path = max(RUNS.glob("*"), key=_started, default=path) if is_newest else _newest(path)
        if not (self._path / "logs").is_dir():
            raise CommandError(
                f"{path}: this is not the directory of a local run, such as .ddpjob/runs/digits-20261123-084053, or"
                " .ddpjob/runs/digits for the newest run of digits, or . for the newest run in the current directory"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def get(self, name: str) -> "Job":  # noqa: ARG002
        """The job as it is, or was at its end.

        Raises:
            CommandError: it is not known: the run has just begun, or is of an earlier release.
        """
        from ddpjob.client.jobs import read_job

        with self._of_somebody():
            body = self._objects()["job"]
            status = body.get("status") or {}
            has_ended = status.get("completionTime") or status.get("phase") == INTERRUPTED
            if not has_ended and pid_of(self._path) is None:
                message = "the run was killed, and none of its processes is left"
                body = {**body, "status": {**status, "phase": INTERRUPTED, "reason": INTERRUPTED, "message": message}}
            annotations = {**(body["metadata"].get("annotations") or {}), ANNOTATION: str(self._path)}
            return read_job({**body, "metadata": {**body["metadata"], "annotations": annotations}})

    def watch(self, name: str) -> "Iterator[Job]":
        """The job as it is now, and again after each change, until the run has ended."""
        before = None
        while True:
            goes_on = pid_of(self._path) is not None
            job = self.get(name)
            if job.body != before:
                yield job
            before = job.body
            if not goes_on:
                return
            time.sleep(POLL_SECONDS)

    def wait(self, name: str, *, until: str, timeout: float | None = None) -> "Job":
        """Wait until the job has reached a state, or can no longer reach it.

        Raises:
            CommandError: neither happened in time.
        """
        from ddpjob.client import Goal

        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            goes_on = pid_of(self._path) is not None
            job = self.get(name)
            if not goes_on or job.reached(Goal(until)) is not None:
                return job
            if time.monotonic() > deadline:
                raise CommandError(f"{self._path}: not {until} in time; it is {job.phase}", code=EXIT_TIMEOUT)
            time.sleep(POLL_SECONDS)

    def delete(self, name: str) -> "Job":
        """Stop the run, which can save its work first, and remove its directory."""
        job = self.get(name)
        if (pid := pid_of(self._path)) is not None:
            os.kill(pid, signal.SIGTERM)
            while pid_of(self._path) is not None:
                time.sleep(POLL_SECONDS)
        shutil.rmtree(self._path)
        return job

    def stacks(self, name: str, *, ranks: Collection[int] | None = None) -> "Stacks":
        """The Python stacks of all threads of each running rank."""
        from ddpjob.client import inspection

        found: Stacks = self._ask(inspection.stacks, name, ranks)
        return found

    def progress(self, name: str, *, ranks: Collection[int] | None = None) -> "RankProgresses":
        """Where each running rank is, and where its time went since its first step."""
        from ddpjob.client import inspection

        found: RankProgresses = self._ask(inspection.progress, name, ranks)
        return found

    def _ask(self, function: Callable[..., Any], name: str, ranks: Collection[int] | None) -> Any:
        job = self.get(name)
        pods = self.pods(job, attempt=job.status.attempt)
        wanted = [pod for pod in pods if ranks is None or pod.rank in ranks]
        return asyncio.run(function(self, job, wanted))

    async def execute(
        self, namespace: str, pod: str, command: Sequence[str], *, container: str, timeout_seconds: float
    ) -> "Execution":
        """Run the command with the variables of a pod, as the API server does in its container."""
        del namespace, container
        from ddpjob_operator.api.names import contract
        from ddpjob_operator.transport.execution import Execution

        with self._of_somebody():
            (body,) = (body for body in self._objects()["pods"] if body["metadata"]["name"] == pod)
            env = {variable["name"]: variable.get("value", "") for variable in body["spec"]["containers"][0]["env"]}
        own = {key: value for key, value in env.items() if key.startswith("DDPJOB_")}
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *command[1:]],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        processes = int(env[contract.WORLD_SIZE]) // int(env[contract.NNODES])
        here = range(int(env[contract.NODE_RANK]) * processes, (int(env[contract.NODE_RANK]) + 1) * processes)
        lines = [line for line in done.stdout.splitlines() if json.loads(line)["rank"] in here]  # the machine has all
        return Execution(exit_code=done.returncode, output="\n".join(lines), errors=done.stderr)

    def pods(self, job: "Job", *, attempt: int | None = None) -> "list[Pod]":  # noqa: ARG002
        """The pods that the job has, or still had at its end."""
        from ddpjob.client.jobs import read_pod

        with self._of_somebody():
            pods = [pod for body in self._objects()["pods"] if (pod := read_pod(body)) is not None]
        return sorted((pod for pod in pods if attempt in (None, pod.attempt)), key=lambda pod: (pod.attempt, pod.rank))

    def events(self, name: str, *, namespace: str | None = None) -> "list[JobEvent]":  # noqa: ARG002
        """None: a local run writes its events to the terminal."""
        return []

    def logs(
        self,
        name: str,  # noqa: ARG002
        *,
        namespace: str | None = None,  # noqa: ARG002
        follow: bool = False,  # noqa: ARG002
        ranks: Collection[int] | None = None,
        attempt: int | str | None = None,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        on_note: Callable[[str], None] = lambda text: None,  # noqa: ARG005
    ) -> "Iterator[LogLine]":
        """The lines of the pods, one pod after the other: they have no times. All logs are kept, also those of deleted pods.

        Raises:
            CommandError: lines are selected by their age.
        """
        from ddpjob.client import LogLine
        from ddpjob_operator.core.untrusted import visible

        if since_seconds is not None:
            raise CommandError("--since: lines of a local run have no times; use --tail")
        logs = self._logs()
        wanted = max((number for number, _, _ in logs), default=1) if attempt is None else attempt
        found = False
        for number, rank, log in logs:
            if wanted not in ("all", number) or (ranks is not None and rank not in ranks):
                continue
            found = True
            with open(log, encoding="utf-8", errors="replace", newline="\n", opener=_of_the_run) as file:
                lines = iter(lambda: file.readline(_MAX_LINE), "")
                for line in lines if tail_lines is None else deque(lines, tail_lines):
                    text = visible(line.rstrip("\n"))
                    yield LogLine(attempt=number, rank=rank, pod=log.stem, node=None, time="", text=text)
        if not found:
            on_note(f"{self._path}: there is no log of these ranks and attempts")

    @contextmanager
    def _of_somebody(self) -> "Iterator[None]":
        """The directory may come from somebody else, and hold anything.

        Raises:
            CommandError: it does not hold a run.
        """
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CommandError(
                f"{self._path / OBJECTS} is not the record of a run ({error!r}); give another directory"
            ) from None

    def _objects(self) -> dict[str, Any]:
        from ddpjob_operator.transport.decoding import decoded
        from ddpjob_operator.transport.resources import DDPJOBS

        try:
            with open(self._path / OBJECTS, "rb", opener=_of_the_run) as file:
                objects: dict[str, Any] = decoded(DDPJOBS, file.read(_MAX_OBJECTS))
        except FileNotFoundError:
            raise CommandError(
                f"{self._path}: the run has just begun, or its state cannot be kept there. To see what it has printed so far: ddpjob"
                f" logs {self._path}, or ddpjob plot {self._path}"
            ) from None
        return objects

    def _logs(self) -> list[tuple[int, int, Path]]:
        """Attempt, rank and file of each log."""
        prefix = _TIME.sub("", self._path.resolve().name) + "-"
        logs = (self._path / "logs").glob(f"{prefix}*.log")
        names = [(_LOG.fullmatch(log.stem.removeprefix(prefix)), log) for log in logs]
        # A pod that replaced another one has a third number.
        found = [([int(number) for number in name.groups(default="0")], log) for name, log in names if name]
        return [(numbers[0], numbers[1], log) for numbers, log in sorted(found)]


def _started(run: Path) -> tuple[str, int]:
    """When a run started, from the name of its directory."""
    found = _TIME.search(run.name)
    return (found[1], int(found[2] or 1)) if found else ("", 0)


def runs() -> "list[Job]":
    """The runs of the current directory whose state is known, oldest first."""
    found = []
    for run in sorted(RUNS.glob("*"), key=_started):
        with suppress(CommandError):
            found.append(RunDirectory(run).get(""))
    return found


def _newest(path: Path) -> Path:
    """The directory of this path, or else the newest of those that add a time to it."""
    if path.exists():
        return path
    runs = [
        ((found[1], int(found[2] or 1)), run)
        for run in path.parent.glob(f"{path.name}-*")
        if (found := _TIME.fullmatch(run.name.removeprefix(path.name)))
    ]
    return max(runs)[1] if runs else path


def _of_the_run(path: str, flags: int) -> int:
    """Open a file of a run, which may come from somebody else: a pipe or device would be read for ever, a link leads elsewhere.

    Raises:
        CommandError: it is no regular file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CommandError(f"{path} is a link; replace it by the file that you want to read") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CommandError(f"{path} is not a regular file; give another directory")
    return descriptor
