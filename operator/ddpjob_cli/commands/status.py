"""`ddpjob status`."""

from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob_cli.events import events_if_allowed
from ddpjob_cli.options import JobOrRun, OutputOption, look_at
from ddpjob_cli.output import indented, is_live, live, print_objects, print_screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ddpjob.client import Client, Job, JobEvent, Pod
    from ddpjob_cli.local_runs import RunDirectory

_MAX_ROWS = 64
_EVENTS = 5


def command(
    job: JobOrRun,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show each change until the job has finished")] = False,
    output: OutputOption = None,
) -> None:
    """Show one job: its state and why, attempts, ranks, progress, conditions, last events, and the next command to try.

    [bold]Examples[/bold]

      ddpjob status resnet18

      ddpjob status resnet18 -w

      ddpjob status resnet18 -o json
    """
    with look_at(job) as client:
        jobs = _until_finished(client.watch(job)) if watch else iter((client.get(job),))
        if output:
            for seen in jobs:
                print_objects([seen.body], output, single=True)
        elif watch and is_live():
            with live() as show:
                for seen in jobs:
                    show(_current_screen(client, seen))
        else:
            for seen in jobs:
                print_screen(_current_screen(client, seen))


def _until_finished(jobs: "Iterator[Job]") -> "Iterator[Job]":
    for job in jobs:
        yield job
        if job.finished:
            return


def _current_screen(client: "Client | RunDirectory", job: "Job") -> "RenderableType":
    pods = client.pods(job, attempt=job.status.attempt)
    return screen(
        job, pods, events_if_allowed(client, job, on_note=lambda _: None)
    )  # a live screen has no place for notes


def screen(job: "Job", pods: "list[Pod]", events: "list[JobEvent]") -> "RenderableType":
    """Everything about a job, as one renderable. Pure."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ddpjob_cli.rendering import (
        age,
        attempt_lines,
        event_lines,
        facts,
        goodput,
        metrics,
        next_command,
        no_status,
        phase_style,
        restarts_so_far,
        scheduling,
        state,
    )

    status = job.status
    facts_table = Table.grid(padding=(0, 2))
    facts_table.add_column(style="bold", no_wrap=True)
    facts_table.add_column(overflow="fold")
    facts_table.add_row("Job", f"{job.namespace}/{job.name}")
    phase, reason = state(job)
    facts_table.add_row("State", Text(phase, style=phase_style(phase)) + Text(f"  {reason}".rstrip(), style="dim"))
    facts_table.add_row("Why", Text(status.message or job.spec_error or no_status(job)))
    facts_table.add_row("Age", age(job.created))
    facts_table.add_row("Attempt", f"{status.attempt}, restarts: {restarts_so_far(status)}")
    if scheduled := scheduling(job):
        facts_table.add_row("Scheduler", scheduled)
    facts_table.add_row("Ready", status.ready or "-")
    if status.progress:
        facts_table.add_row("Progress", Text(" · ".join(facts(status.progress, finished=job.finished))))
    if named := metrics(status.progress):
        facts_table.add_row("Metrics", Text(named))
    if status.time:
        facts_table.add_row("Goodput", goodput(status.time))
    parts: list[RenderableType] = [facts_table, Text("\nAttempts", style="bold")]
    parts += [indented(line) for line in attempt_lines(job)]
    if pods:
        parts += [Text(""), rank_table(job, pods)]
    if status.conditions:
        parts.append(Text("\nConditions", style="bold"))
        parts += [
            indented(f"{c.type:<11} {c.status:<6} {c.reason}: {c.message}".removesuffix(": "))
            for c in status.conditions
        ]
    if events:
        parts.append(Text("\nLast events", style="bold"))
        parts += [indented(line) for line in event_lines(events[-_EVENTS:])]
    parts.append(Text(f"\nNext: {next_command(job, pods)}", style="bold"))
    return Group(*parts)


def rank_table(job: "Job", pods: "list[Pod]") -> "RenderableType":
    """The ranks of an attempt. Of many, those that do not run come first and the rest is counted."""
    from rich.table import Table
    from rich.text import Text

    from ddpjob_cli.rendering import NOTHING, message_of, rank_style

    shown = pods
    if len(pods) > _MAX_ROWS:
        odd = [pod for pod in pods if pod.state != "Running"]
        shown = sorted((odd + [pod for pod in pods if pod.state == "Running"])[:_MAX_ROWS], key=lambda pod: pod.rank)
    caption = f"and {len(pods) - len(shown)} further ranks" if len(shown) < len(pods) else None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", caption=caption)
    for title in ("NODE RANK", "POD", "NODE", "STATE", "RESTARTS", "EXIT", "MESSAGE"):
        table.add_column(title, no_wrap=title != "MESSAGE", overflow="fold")
    for pod in shown:
        code = NOTHING if pod.exit_code is None else str(pod.exit_code)
        table.add_row(
            Text(str(pod.rank), style=rank_style(pod.rank)),
            *(pod.name, pod.node or NOTHING, Text(pod.state), str(pod.restarts), code, Text(message_of(job, pod))),
        )
    return table
