"""`ddpjob stacks`."""

from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob_cli.failures import CommandError
from ddpjob_cli.options import JobOrRun, OutputOption, look_at
from ddpjob_cli.output import console, name_of, note, print_data

if TYPE_CHECKING:
    from ddpjob.client import RankStacks


def command(
    job: JobOrRun,
    rank: Annotated[str | None, typer.Option(help="Node ranks, such as 0,3-5", show_default=False)] = None,
    output: OutputOption = None,
) -> None:
    """Show the Python stacks of all threads of the running ranks. Training is not interrupted.

    The ranks of the built-in trainer and of programs on ddpjob.session answer. For other programs, put py-spy into the image.

    [bold]Examples[/bold]

      ddpjob stacks resnet18

      ddpjob stacks resnet18 --rank 0,3-5
    """
    from ddpjob_cli.local_runs import RunDirectory
    from ddpjob_cli.rendering import parse_ranks

    with look_at(job) as client:
        where = "" if isinstance(client, RunDirectory) else f" -n {client.namespace}"
        found = client.stacks(job, ranks=parse_ranks(rank))
    if output:
        print_data([as_json(stacks) for stacks in found], output, names=[name_of(stacks.pod.body) for stacks in found])
    else:
        _print([stacks for stacks in found if stacks.text])
    silent = [stacks for stacks in found if not stacks.text]
    for stacks in silent:
        who = "" if stacks.rank is None else f"rank {stacks.rank}: "
        note(f"{who}pod {stacks.pod.name}: {stacks.error}")
    if len(silent) == len(found):
        dump = "py-spy dump --subprocesses --pid"
        shown = f"ddpjob exec {job}{where} --rank {silent[0].pod.rank} -- {dump} 1" if where else f"{dump} PID"
        raise CommandError(f"{job}: no stacks; with py-spy where the program runs: {shown}")


def _print(found: "list[RankStacks]") -> None:
    from rich.text import Text

    from ddpjob_cli.rendering import rank_style

    out = console()
    for stacks in found:
        title = f"rank {stacks.rank}, pod {stacks.pod.name} on {stacks.pod.node}"
        out.print(Text(title, style=f"bold {rank_style(stacks.rank or 0)}"), soft_wrap=True)
        out.print(Text(stacks.text), soft_wrap=True)
        out.print()


def as_json(stacks: "RankStacks") -> dict[str, object]:
    """Stacks as a JSON object."""
    return {
        "rank": stacks.rank,
        "pod": stacks.pod.name,
        "node": stacks.pod.node,
        "stacks": stacks.text or None,
        "error": stacks.error or None,
    }
