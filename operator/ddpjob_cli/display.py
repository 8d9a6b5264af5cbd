"""The output of `ddpjob run`: the lines of all ranks, the progress of the training, and a summary at the end."""

import re
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ddpjob_cli.output import console, yaml_text
from ddpjob_cli.peer_stacks import PeerStacks
from ddpjob_cli.rendering import facts, phase_style, rank_style, summary
from ddpjob_cli.training_lines import TrainingLines
from ddpjob_operator.api.names import Phase
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.untrusted import visible

#: Of a line with the bar: the spinner, the time, and the gaps between columns.
_OTHER_COLUMNS = len("*0:00:00") + 4


class Display:
    """Lines on standard output, and on a terminal a bar below them that shows `status.progress`.

    It is a context manager: the bar is shown inside the context.
    """

    def __init__(self, *, processes_per_node: int, verbose: bool, notes_on_stderr: bool = False) -> None:
        """With `notes_on_stderr` standard output holds the lines of the ranks alone, unless it is a terminal."""
        self._pod_title = "rank" if processes_per_node == 1 else "node"
        self._verbose = verbose
        self._lines = TrainingLines(verbose=verbose)
        self._stacks = PeerStacks()
        self._console = console()
        fancy = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bar = _Bar(self._console) if fancy else None
        self._notes = console(stderr=True) if notes_on_stderr and not fancy else self._console
        self._shown = DDPJobStatus()
        self._said = ""
        self.on_change: Callable[..., None] = lambda status, *, is_news: None  # noqa: ARG005
        """Called with each new status, and with whether its phase, reason or attempt is new."""

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        for rank, line in self._stacks.rest():
            self._print(rank, line)
        if self._bar:
            self._bar.stop()

    def say(self, text: str, style: str = "bold") -> None:
        """Print a line of the command itself. The line may contain output of programs, so markup and control characters have no effect."""
        for line in text.splitlines():
            self._notes.print(Text(f"ddpjob: {visible(line)}", style=style), soft_wrap=True)

    def on_ignored(self, parts: tuple[str, ...]) -> None:
        """Print the parts of the pods that a local run ignores."""
        if parts:
            self.say(f"a local run ignores these parts of the job: {', '.join(parts)}", style="dim")

    def on_pod(self, name: str, command: tuple[str, ...]) -> None:
        """A pod starts."""
        if self._verbose:
            self.say(f"pod {name} runs {' '.join(command)}", style="dim")

    def on_line(self, rank: int, text: str) -> None:
        """A rank printed a line."""
        line = visible(text)
        for shown in [line] if self._verbose else self._stacks.shown(rank, line):
            self._print(rank, shown)

    def _print(self, rank: int, line: str) -> None:
        shown = self._lines.shown(rank, line)
        if shown is not None:
            prefix = (f"[{self._pod_title} {rank}] ", rank_style(rank))
            self._console.print(Text.assemble(prefix, shown), soft_wrap=True)

    def on_note(self, text: str) -> None:
        """Print a sentence about the logs or the run, unless it repeats the message of the status."""
        if not (self._shown.message and self._shown.message in text):
            self.say(text, style="dim")

    def on_status(self, status: DDPJobStatus) -> None:
        """The status has changed: update the bar, and print a line for a new phase, reason or attempt, but for the end."""
        if self._bar:
            self._bar.show(status)
        before = (self._shown.phase, self._shown.reason, self._shown.attempt)
        is_news = (status.phase, status.reason, status.attempt) != before
        self.on_change(status, is_news=is_news)
        if not status.finished and is_news:
            style = phase_style(status.phase)
            self.say(f"attempt {status.attempt}: {status.phase}: {self._news(status) or status.reason}", style=style)
        self._shown = status

    def _news(self, status: DDPJobStatus) -> str:
        """The message of the status without the sentence about a failure that an earlier line has said."""
        message = status.message or ""
        sentence = failure_sentence(status.failure) if status.failure else ""
        if sentence and sentence == self._said:
            return re.sub(rf"(; |\. Before: ){re.escape(sentence)}", "", message)
        if sentence in message:
            self._said = sentence
        return message

    def show_status(self, status: DDPJobStatus) -> None:
        """Print the whole status in the format of `kubectl get -o yaml`."""
        text = yaml_text({"status": status.as_json()})
        self._console.print(Text(text.rstrip()), soft_wrap=True)

    def show_summary(self, status: DDPJobStatus) -> None:
        """Print what the training reached and how the time was spent: at most five lines."""
        for name, text in summary(status):
            self.say(f"  {name:<9} {text}", style="")


class _Bar:
    """The progress bar in the last line of the terminal."""

    def __init__(self, console: Console) -> None:
        bar_width = 20 if console.width >= 100 else 5
        self._width = console.width - bar_width - _OTHER_COLUMNS
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[state]}", style="bold", markup=False),
            BarColumn(bar_width=bar_width),
            TextColumn("{task.fields[facts]}", markup=False),
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
        state = [status.phase or "Pending"]
        if status.attempt > 1:
            state.append(f"attempt {status.attempt}")
        if status.phase != Phase.RUNNING:
            state.append(f"{status.ready or '0'} ready")
        known = facts(progress) if progress else []
        known.sort(key=lambda fact: not fact.startswith(("step ", "ETA ")))
        shown = " · ".join(state)
        while len(known) > 1 and len(" · ".join(known)) > self._width - len(shown):
            known.pop()
        self._progress.update(
            self._task,
            state=shown,
            facts=" · ".join(known),
            total=progress.total_steps if progress else None,
            completed=progress.step if progress else 0,
        )
