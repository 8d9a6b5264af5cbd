"""`ddpjob list`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob_cli.options import CLUSTER, OutputOption, connect
from ddpjob_cli.output import note, print_objects, print_screen

if TYPE_CHECKING:
    from rich.table import Table

    from ddpjob.client import Job


def command(
    selector: Annotated[str, typer.Option("--selector", "-l", help="Label selector")] = "",
    local: Annotated[bool, typer.Option("--local", help="The local runs of the current directory")] = False,
    output: OutputOption = None,
) -> None:
    """List the jobs of a namespace, oldest first.

    [bold]Examples[/bold]

      ddpjob list -A

      ddpjob list -l team=vision -o name
    """
    from ddpjob.client import ALL_NAMESPACES

    if local:
        from ddpjob_cli.local_runs import RUNS, runs

        where, jobs = "", runs()
    else:
        with connect() as client:
            where = ALL_NAMESPACES if CLUSTER.all_namespaces else client.namespace
            jobs = client.list(namespace=where, labels=selector)
    if output:
        print_objects([job.body for job in jobs], output)
        return
    if not jobs:
        scope = str(RUNS) if local else "any namespace" if CLUSTER.all_namespaces else f"namespace {where}"
        note(f"no jobs in {scope}; to start one: ddpjob run FILE")
        return
    print_screen(_table(jobs))


def _table(jobs: "Sequence[Job]") -> "Table":
    from rich.table import Table

    from ddpjob_cli.rendering import age, job_row

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in (
        *(("NAMESPACE",) if CLUSTER.all_namespaces else ()),
        "NAME",
        "PHASE",
        "REASON",
        "READY",
        "ATTEMPT",
        "STEP",
        "ETA",
        "AGE",
    ):
        table.add_column(title, no_wrap=True)
    for job in jobs:
        prefix = (job.namespace,) if CLUSTER.all_namespaces else ()
        table.add_row(*prefix, *job_row(job), age(job.created))
    return table
