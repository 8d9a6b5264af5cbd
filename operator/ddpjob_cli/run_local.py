"""`ddpjob run --local`: reads the file, runs the job and reports the result."""

import asyncio
import importlib.util
import os
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from ddpjob_cli.display import Display
from ddpjob_cli.failures import EXIT_FAILED, EXIT_SUCCEEDED
from ddpjob_cli.local.run import LocalRun
from ddpjob_cli.local_runs import INTERRUPTED, RUNS, how_to_continue, interrupted, marked_as_running, write_objects
from ddpjob_cli.manifest import Manifest, ManifestError
from ddpjob_cli.visible_output import output_ends_nothing
from ddpjob_operator.api.names import ConditionType, contract
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.times import duration, rfc3339

#: So often the state of a running job is stored at most while only its progress changes.
SECONDS_BETWEEN_STATES = 1.0


def run_local(manifest: Manifest, *, verbose: bool, show_status: bool) -> int:
    """Run a job on this machine. At its end a summary is printed, or with `show_status` the whole status as YAML.

    Returns:
        0 if it succeeded, 1 if it failed, 128 + n if it was interrupted by signal n.

    Raises:
        ValueError: this machine cannot run the job; no process is left.
        OSError: the operating system refuses something that the run needs; no process is left.
    """
    if manifest.spec.suspend:
        raise ManifestError(f"{manifest.path}: spec.suspend is true, so no pod would run; set it to false")
    if manifest.spec.trainer is not None and importlib.util.find_spec("torch") is None:
        raise ManifestError(
            f"{manifest.path}: spec.trainer runs the built-in trainer, whose packages are not installed in {sys.prefix}:"
            " install ddpjob with the extra trainer (in a checkout: pip install '.[trainer]')"
        )
    output_ends_nothing()
    with Display(processes_per_node=manifest.spec.processes, verbose=verbose) as display:
        if manifest.others:
            display.say(f"a local run ignores these objects of the file: {', '.join(manifest.others)}", style="dim")
        if manifest.spec.checkpoint is None and contract.DDPJOB_CHECKPOINT_DIR in os.environ:
            display.say(
                f"a local run ignores the variable {contract.DDPJOB_CHECKPOINT_DIR} of this shell; to keep checkpoints, name the"
                f" job and set checkpoint.volume: --name {manifest.name} --set checkpoint.volume.hostPath.path=DIRECTORY",
                style="yellow",
            )
        folder = _new_folder(manifest.name)
        started, created = time.monotonic(), rfc3339(time.time())
        with marked_as_running(folder):
            run, received = asyncio.run(_to_the_end(manifest, folder, display, created))
            status = run.status if received is None else interrupted(run.status, folder, manifest.name, received.name)
            try:
                write_objects(folder, _job_as_json(manifest, status, created), run.pods)
            except OSError as error:
                display.say(f"the end of the run cannot be kept in {folder}: {error.strerror}", style="yellow")
    if show_status:
        display.show_status(status)
    took = duration(time.monotonic() - started)
    if received is not None:
        outcome, style, code = (
            f"was interrupted after {took}: {status.message}, and none of its processes is left",
            "yellow",
            128 + received,
        )
    elif status.condition(ConditionType.SUCCEEDED):
        doubt = (status.message or "").partition("; ")[2]  # of pods that may have trained alone
        outcome = f"succeeded after {took} in attempt {status.attempt}" + (f"; {doubt}" if doubt else "")
        style, code = "green", EXIT_SUCCEEDED
    else:
        outcome, style, code = f"failed after {took}: {status.message}", "red", EXIT_FAILED
    if show_status:
        outcome += f"; logs and files: {folder}"
    else:
        display.show_summary(status)
        display.say(f"  {'files':<9} {_where_to_look(status, folder)}", style="")
        display.say(f"  {'next':<9} {_next_command(manifest, status, folder)}", style="")
    display.say(f"{manifest.name} {outcome}", f"bold {style}")
    return code


def _job_as_json(manifest: Manifest, status: DDPJobStatus, created: str) -> dict[str, Any]:
    """The job as an API server would show it."""
    metadata = {**manifest.body["metadata"], "namespace": manifest.namespace, "creationTimestamp": created}
    return {**manifest.body, "metadata": metadata, "status": status.as_json()}


def _where_to_look(status: DDPJobStatus, folder: Path) -> str:
    """The log of the rank that failed, or the directory of the run."""
    log = folder / "logs" / f"{status.failure.pod}.log" if status.failure and status.failure.pod else None
    return _from_here(log if log is not None and log.exists() else folder)


def _next_command(manifest: Manifest, status: DDPJobStatus, folder: Path) -> str:
    """A command that shows more of the run, or what continues it."""
    if status.phase == INTERRUPTED:
        return how_to_continue(manifest.body)
    if status.condition(ConditionType.SUCCEEDED):
        return f"ddpjob {'plot' if status.progress else 'logs'} {_from_here(folder)}"
    return f"ddpjob explain {_from_here(folder)}"


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


async def _to_the_end(
    manifest: Manifest, folder: Path, display: Display, created: str
) -> tuple[LocalRun, signal.Signals | None]:
    """The finished run, and the first signal that interrupted it."""
    kept_at = float("-inf")

    def keep(status: DDPJobStatus, *, is_news: bool) -> None:
        """Store the state for commands that look at the run; not each step of a fast program."""
        nonlocal kept_at
        if is_news or time.monotonic() - kept_at >= SECONDS_BETWEEN_STATES:
            kept_at = time.monotonic()
            with suppress(OSError):  # a full disk ends no training
                write_objects(folder, _job_as_json(manifest, status, created), run.pods)

    display.on_change = keep
    run = LocalRun(manifest.namespace, manifest.name, manifest.spec, manifest.config_maps, folder, display)
    received: list[signal.Signals] = []

    def interrupt(signal_number: signal.Signals) -> None:
        received.append(signal_number)
        display.say(
            f"{signal_number.name}: stopping all ranks, which can save their work first; send the signal again to kill them"
            if len(received) == 1
            else f"{signal_number.name}: killing all ranks",
            "bold yellow",
        )
        run.interrupt()

    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, interrupt, signal_number)
    loop.add_signal_handler(
        signal.SIGHUP, display.say, f"the terminal has gone; the training continues: ddpjob logs {folder}"
    )
    await run.run()
    return run, received[0] if received and not run.status.finished else None


def _new_folder(job_name: str) -> Path:
    """A new directory for this run, because each run is a new job. Git ignores all files in .ddpjob.

    Other users of this machine cannot look into it: programs print what they work on.
    """
    RUNS.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), (RUNS.parent / ".gitignore").open("x", encoding="utf-8") as file:  # through no link
        file.write("*\n")
    name = f"{job_name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for number in range(1, 1000):
        folder = RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # another run of the same second
            continue
        return folder.absolute()
    raise OSError(f"cannot create a directory for the run: {RUNS / name} and 998 others of its name exist")
