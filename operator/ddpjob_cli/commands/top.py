"""`ddpjob top`."""

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob_cli.options import JobOrRun, OutputOption, look_at
from ddpjob_cli.output import console, is_live, live, note, print_data, print_screen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from ddpjob.client import Client, Job, RankState
    from ddpjob_cli.local_runs import RunDirectory
    from ddpjob_cli.speeds import Speed


def command(
    job: JobOrRun,
    rank: Annotated[str | None, typer.Option(help="Node ranks, such as 0,3-5", show_default=False)] = None,
    once: Annotated[bool, typer.Option("--once", help="Show the state once, also on a terminal")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Continue until the job has finished, as on a terminal")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two screens", min=0.5)] = 3.0,
    output: OutputOption = None,
) -> None:
    """Show each running rank: step, samples per second, where its time goes, the slowest rank, and memory.

    The ranks of the built-in trainer and of programs on ddpjob.session answer, by a command in their pods. The first screen
    covers the time since the first step, and each later one the time since the screen before. COMM is the time in which a
    rank waits for slower ranks, or for communication that does not overlap with computation.

    [bold]Examples[/bold]

      ddpjob top resnet18

      ddpjob top resnet18 --once -o json
    """
    from ddpjob_cli.rendering import outcome, parse_ranks

    ranks = parse_ranks(rank)
    found: list[Speed] = []
    with look_at(job) as client:
        seen = client.get(job)
        shows_all = watch or (is_live() and not once and not output)
        looks = _looks(client, job, ranks, interval) if shows_all else iter([(seen, _look(client, seen, ranks, {}))])
        if output:
            for _, found in looks:
                rows = [dataclasses.asdict(speed) for speed in found]
                print_data(rows, output, names=[f"pod/{speed.pod}" for speed in found])
        elif shows_all and is_live():
            with live() as show:
                for seen, found in looks:
                    show(screen(seen, found, console().width))
        else:
            for seen, found in looks:
                print_screen(screen(seen, found, console().width))
        for text in notes(job, found):
            note(text)
        if shows_all:
            note(outcome(client.get(job)))


def _looks(
    client: "Client | RunDirectory", name: str, ranks: "frozenset[int] | None", interval: float
) -> "Iterator[tuple[Job, list[Speed]]]":
    """The job and its ranks again and again, until the job has finished."""
    from ddpjob.client import ConflictError

    before: dict[int, RankState] = {}
    while not (job := client.get(name)).finished:
        try:
            yield job, _look(client, job, ranks, before)
        except ConflictError:  # between two attempts no pod runs
            before.clear()
            yield job, []
        time.sleep(interval)


def _look(
    client: "Client | RunDirectory", job: "Job", ranks: "frozenset[int] | None", before: "dict[int, RankState]"
) -> "list[Speed]":
    """The ranks as they are now; `before` is brought up to date."""
    from ddpjob_cli.speeds import speeds

    found = client.progress(job.name, ranks=ranks)
    world_size = (job.status.replicas or job.spec.nodes) * job.spec.processes if job.spec else len(found)
    result = speeds(found, before, world_size=world_size)
    before.update({rank.state.rank: rank.state for rank in found if rank.state is not None})
    return result


#: The columns, and whether they are numbers.
_COLUMNS = {
    "RANK": False,
    "NODE": False,
    "STEP": True,
    "PHASE": False,
    "SAMPLES/S": True,
    "DATA": True,
    "COMM": True,
    "MEMORY": True,
    "GPU MEMORY": True,
    "": False,
}
#: A narrow terminal shows fewer columns, these being the first to go.
_OPTIONAL = ("NODE", "MEMORY", "SAMPLES/S", "GPU MEMORY", "PHASE")
_GAP = 2


def screen(job: "Job", found: "Sequence[Speed]", width: int) -> "RenderableType":
    """The job in a line and its ranks in a table of at most `width` columns of text. Pure."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ddpjob_cli.rendering import facts, phase_style, rank_style

    status = job.status
    title = Text.assemble((job.phase, phase_style(job.phase)), f"  attempt {status.attempt}  ")
    known = " · ".join(facts(status.progress)) if status.progress else status.message or ""
    rows = [dict(zip(_COLUMNS, row(speed), strict=True)) for speed in found]
    columns = fitting(rows, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if _COLUMNS[name] else "left")
    styles = {"": "bold yellow"}
    for speed, cells in zip(found, rows, strict=True):
        of_rank = {**styles, "RANK": rank_style(speed.rank or 0)}
        table.add_row(*(Text(cells[name], style=of_rank.get(name, "")) for name in columns))
    return Group(title + Text(known), table)


def fitting(rows: "Sequence[Mapping[str, str]]", width: int) -> list[str]:
    """The columns that fit into the width; those that say most stay."""
    widths = {name: max([len(name), *(len(cells[name]) for cells in rows)]) + _GAP for name in _COLUMNS}
    for name in _OPTIONAL:
        if sum(widths.values()) - _GAP <= width:
            break
        del widths[name]
    return list(widths)


def row(speed: "Speed") -> list[str]:
    """The cells of a rank; what is not known is -."""
    from ddpjob.client.files import readable_size
    from ddpjob_cli.rendering import NOTHING, number

    def share(value: float | None) -> str:
        return NOTHING if value is None else f"{100 * value:.0f} %"

    def size(value: int | None) -> str:
        return NOTHING if value is None else readable_size(value)

    gpu = size(speed.gpu_memory_bytes)
    if speed.gpu_memory_total_bytes:
        gpu += f" of {size(speed.gpu_memory_total_bytes)}"
    remarks = []
    if speed.waiting_share is not None:
        remarks.append(f"slowest: others wait {share(speed.waiting_share)} of the time")
    if speed.is_behind:
        remarks.append("behind")
    if speed.error:
        remarks.append("no answer")
    since = speed.seconds_in_phase
    return [
        NOTHING if speed.rank is None else str(speed.rank),
        speed.node or NOTHING,
        NOTHING if speed.step is None else str(speed.step),
        speed.phase + (f" {since:.0f}s" if since is not None and since >= 10 else "") or NOTHING,
        number(speed.samples_per_second),
        share(speed.data_share),
        share(speed.communication_share),
        size(speed.memory_bytes),
        gpu,
        ", ".join(remarks),
    ]


def notes(name: str, found: "Sequence[Speed]") -> list[str]:
    """Why cells are empty, and what to do."""
    lines = [f"pod {speed.pod}: {speed.error}" for speed in found if speed.error]
    known = [speed for speed in found if not speed.error]
    if lines:
        lines.append(f"the output of the program: ddpjob logs {name} -f")
    if any(speed.data_share is None for speed in known):
        lines.append(
            "DATA and COMM are known from the second log line of the built-in trainer on; ddpjob.session does not see the"
            " parts of a step"
        )
    elif any(speed.communication_share is None for speed in known):
        lines.append("COMM is known after a step that the trainer has timed")
    if any(speed.data_share is not None and speed.samples_per_second is None for speed in known):
        lines.append("SAMPLES/S is not known: the program does not report its samples")
    if known and all(speed.gpu_memory_bytes is None for speed in known):
        lines.append("GPU MEMORY is -: the ranks use no GPU")
    return lines
