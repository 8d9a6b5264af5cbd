"""`ddpjob logs`."""

import re
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob_cli.failures import CommandError
from ddpjob_cli.options import JobOrRun, look_at
from ddpjob_cli.output import console, json_text, note

if TYPE_CHECKING:
    from rich.text import Text

    from ddpjob.client import Job, LogLine


class LogOutput(StrEnum):
    """Formats of lines."""

    RAW = "raw"
    JSON = "json"


def command(
    job: JobOrRun,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Follow new lines, also of later attempts, until the job has finished"),
    ] = False,
    rank: Annotated[str | None, typer.Option(help="Node ranks, such as 0,3-5", show_default=False)] = None,
    attempt: Annotated[
        str | None, typer.Option(help="Number of an attempt, or all; by default the current one", show_default=False)
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only the pod that caused the last failure")] = False,
    since: Annotated[
        str | None, typer.Option(help="Only lines newer than this, such as 10m", show_default=False)
    ] = None,
    tail: Annotated[
        int | None, typer.Option(help="Only the last lines of each rank", min=0, show_default=False)
    ] = None,
    grep: Annotated[
        str | None, typer.Option(help="Only lines that this regular expression matches", show_default=False)
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Every line as it was printed, progress for programs and all stacks included")
    ] = False,
    output: Annotated[
        LogOutput | None,
        typer.Option(
            "--output", "-o", help="raw: without prefix; json: a JSON object for each line", show_default=False
        ),
    ] = None,
) -> None:
    """Show what the ranks of a job print, merged, each line with its rank, as `ddpjob run` shows it.

    --raw shows every line, and so do --grep and -o.

    [bold]Examples[/bold]

      ddpjob logs resnet18 -f

      ddpjob logs resnet18 --failed

      ddpjob logs resnet18 --attempt all --rank 0,3-5 --grep loss
    """
    from ddpjob_cli.rendering import parse_ranks, parse_seconds

    ranks = parse_ranks(rank)
    number = _attempt(attempt)
    seconds = parse_seconds(since, "--since")
    pattern = _pattern(grep)
    out = console()
    with look_at(job) as client:
        if failed:
            seen = client.get(job)
            number, ranks = culprit(seen)
            note(who_failed(seen))
        lines = client.logs(
            job,
            follow=follow,
            ranks=ranks,
            attempt=number,  # type: ignore[arg-type]  # _attempt returns a number or "all"
            tail_lines=tail,
            since_seconds=None if seconds is None else max(1, int(seconds)),
            on_note=note,
        )
        is_empty = True
        for line in lines if raw or output or pattern else readable(lines):
            is_empty = False
            if pattern is not None and not pattern.search(line.text):
                continue
            if output is LogOutput.RAW:
                print(line.text, flush=follow)
            elif output is LogOutput.JSON:
                print(json_line(line), flush=follow)
            else:
                out.print(prefixed(line), soft_wrap=True)
        if failed and is_empty:
            note("it printed nothing")
    sys.stdout.flush()


def readable(lines: "Iterable[LogLine]") -> "Iterator[LogLine]":
    """The lines as `ddpjob run` shows them: without those for programs, and without stacks that name no cause."""
    lines = iter(lines)
    first = next(lines, None)  # the first request needs none of these modules
    if first is None:
        return
    from dataclasses import replace

    from ddpjob_cli.peer_stacks import PeerStacks
    from ddpjob_cli.training_lines import SECONDS_BETWEEN_STEPS, TrainingLines

    stacks = PeerStacks(where="with --raw")
    # Of a log that is read at once, all lines about steps are shown.
    kinds = TrainingLines(verbose=False, clock=count(step=SECONDS_BETWEEN_STEPS).__next__)
    last: dict[int, LogLine] = {}
    for line in chain([first], lines):
        last[line.rank] = line
        for text in stacks.shown(line.rank, line.text):
            if (shown := kinds.shown(line.rank, text)) is not None:
                yield replace(line, text=shown)
    for rank, text in stacks.rest():
        yield replace(last[rank], text=text)


def culprit(job: "Job") -> tuple[int, frozenset[int]]:
    """Attempt and node rank of the last failure.

    Raises:
        CommandError: the job has no failure, or no rank caused it.
    """
    from ddpjob_cli.rendering import address

    failure = job.status.failure
    if failure is None:
        raise CommandError(f"DDPJob {job.namespace}/{job.name} has no failure; leave out --failed")
    if failure.rank is None:
        raise CommandError(
            f"DDPJob {job.namespace}/{job.name}: no single rank caused the failure of attempt {failure.attempt}"
            f" ({failure.reason}); to see all ranks: ddpjob logs {address(job)} --attempt {failure.attempt}"
        )
    return failure.attempt, frozenset({failure.rank})


def who_failed(job: "Job") -> str:
    """The rank that caused the last failure, with its pod and its node."""
    from ddpjob_operator.core.failure.messages import rank_and_pod

    failure = job.status.failure
    assert failure is not None, "the caller has checked it"
    return f"{rank_and_pod(failure)}, attempt {failure.attempt}"


def prefixed(line: "LogLine") -> "Text":
    """The line with its rank and node, in the colour of the rank."""
    from rich.text import Text

    from ddpjob_cli.rendering import rank_style

    node = f" {line.node}" if line.node else ""
    return Text.assemble((f"[r{line.rank:02d}{node}]", rank_style(line.rank)), " ", line.text)


def json_line(line: "LogLine") -> str:
    """The line as a JSON object."""
    return json_text({name: getattr(line, name) for name in ("time", "attempt", "rank", "pod", "node", "text")})


def _attempt(text: str | None) -> int | str | None:
    if text is None or text == "all":
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise CommandError(f"--attempt {text}: expected the number of an attempt (1 or higher) or all")


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise CommandError(
            f"--grep {text} is not a regular expression: {error}; put a \\ before characters that mean themselves"
        ) from None
