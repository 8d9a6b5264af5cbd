"""The output of a local run: the lines of all ranks, the progress of the training, and the final status."""

import os
from collections.abc import Mapping
from typing import Self

import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ddpjob_operator.api.names import Phase, contract
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.untrusted import visible

RANK_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
PHASE_COLOURS: Mapping[str | None, str] = {
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
    Phase.RESTARTING: "yellow",
}


class Display:
    """Lines on standard output, and on a terminal a bar below them that shows `status.progress`.

    It is a context manager: the bar is shown inside the context.
    """

    def __init__(self, *, processes_per_node: int, verbose: bool) -> None:
        self._pod_title = "rank" if processes_per_node == 1 else "node"
        self._verbose = verbose
        # https://no-color.org; rich itself handles FORCE_COLOR and similar variables.
        self._console = Console(
            highlight=False, soft_wrap=True, force_terminal=False if os.environ.get("NO_COLOR") else None
        )
        fancy = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar = _Bar(self._console) if fancy else None
        self._shown = DDPJobStatus()

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, text: str, style: str = "bold") -> None:
        """Print a line of the command itself. The line may contain output of programs, so markup and control characters have no effect."""
        for line in text.splitlines():
            self._console.print(Text(f"ddpjob: {visible(line)}", style=style))

    def on_ignored(self, parts: tuple[str, ...]) -> None:
        """Print the parts of the pods that a local run ignores."""
        self.say(f"a local run ignores these parts of the pods: {', '.join(parts)}", style="dim")

    def on_pod(self, name: str, command: tuple[str, ...]) -> None:
        """A pod starts."""
        if self._verbose:
            self.say(f"pod {name} runs {' '.join(command)}", style="dim")

    def on_line(self, rank: int, text: str) -> None:
        """A rank printed a line."""
        if contract.PROGRESS_PREFIX in text and not self._verbose:
            return
        prefix = (f"[{self._pod_title} {rank}] ", RANK_COLOURS[rank % len(RANK_COLOURS)])
        self._console.print(Text.assemble(prefix, visible(text)))

    def on_status(self, status: DDPJobStatus) -> None:
        """The status has changed: update the bar, and print a line for a new phase, reason or attempt."""
        if self._bar:
            self._bar.show(status)
        if (status.phase, status.reason, status.attempt) != (
            self._shown.phase,
            self._shown.reason,
            self._shown.attempt,
        ):
            style = PHASE_COLOURS.get(status.phase, "bold")
            self.say(f"attempt {status.attempt}: {status.phase}: {status.message or status.reason}", style=style)
        self._shown = status

    def show_status(self, status: DDPJobStatus) -> None:
        """Print the whole status in the format of `kubectl get -o yaml`."""
        text = yaml.safe_dump({"status": status.as_json()}, sort_keys=False, width=110, allow_unicode=True)
        self._console.print(Text(text.rstrip()))


class _Bar:
    """The progress bar in the last line of the terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[state]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("job", total=None, state="Pending", facts="")

    def start(self) -> None:
        self._progress.start()

    def stop(self) -> None:
        self._progress.stop()

    def show(self, status: DDPJobStatus) -> None:
        """Show phase, attempt and the latest progress of rank 0."""
        progress = status.progress
        self._progress.update(
            self._task,
            state=f"{status.phase or 'Pending'} · attempt {status.attempt} · {status.ready or '0'} ready",
            facts=_facts(status),
            total=progress.total_steps if progress else None,
            completed=progress.step if progress else 0,
        )


def _facts(status: DDPJobStatus) -> str:
    progress = status.progress
    if progress is None:
        return ""
    total = f"/{progress.total_steps}" if progress.total_steps is not None else ""
    facts = [f"step {progress.step}{total}"]
    if progress.loss is not None:
        facts.append(f"loss {progress.loss:g}")
    if progress.samples_per_second is not None:
        facts.append(f"{progress.samples_per_second:g} samples/s")
    if progress.eta is not None:
        facts.append(f"ETA {progress.eta}")
    return " · ".join(facts)
