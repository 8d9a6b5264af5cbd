"""`ddpjob wait`."""

from enum import StrEnum
from typing import Annotated

import typer

from ddpjob_cli.failures import EXIT_FAILED, EXIT_SUCCEEDED
from ddpjob_cli.options import JobOrRun, OutputOption, look_at
from ddpjob_cli.output import note, print_objects


class GoalName(StrEnum):
    """What to wait for."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RUNNING = "running"
    FINISHED = "finished"


def command(
    job: JobOrRun,
    goal: Annotated[GoalName, typer.Option("--for", help="What to wait for")] = GoalName.FINISHED,
    timeout: Annotated[str | None, typer.Option(help="Give up after this time, such as 2h", show_default=False)] = None,
    output: OutputOption = None,
) -> None:
    """Wait until a job has reached a state, or can no longer reach it.

    The exit code is 0 if the state was reached, 1 if it can no longer be reached, 124 after the time-out. For `finished` it is
    0 if the job succeeded and 1 if it failed.

    [bold]Examples[/bold]

      ddpjob wait resnet18 --for running --timeout 10m

      ddpjob wait resnet18 && ddpjob logs resnet18 --tail 20
    """
    from ddpjob.client import Goal
    from ddpjob_cli.rendering import outcome, parse_seconds

    seconds = parse_seconds(timeout, "--timeout")
    with look_at(job) as client:
        seen = client.wait(job, until=goal.value, timeout=seconds)
    if output:
        print_objects([seen.body], output, single=True)
    note(outcome(seen))
    good = seen.succeeded if goal is GoalName.FINISHED else bool(seen.reached(Goal(goal.value)))
    raise typer.Exit(EXIT_SUCCEEDED if good else EXIT_FAILED)
