"""`ddpjob run`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ddpjob_cli.failures import CommandError


class DryRun(StrEnum):
    """How to check a file without running it."""

    CLIENT = "client"
    SERVER = "server"


class YamlOutput(StrEnum):
    """Formats of the status at the end."""

    YAML = "yaml"


def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML file with one DDPJob and the ConfigMaps that it uses")
    ],
    local: Annotated[bool, typer.Option("--local", help="Run the job on this machine, each pod as a process")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Submit the job and return without following it")
    ] = False,
    dry_run: Annotated[
        DryRun | None,
        typer.Option(
            help="Print the objects and run nothing. client: without a cluster; server: the cluster checks them first",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Set a field of the spec, such as trainer.epochs=3", show_default=False
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Set an environment variable", show_default=False),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show every line of the ranks, and commands")] = False,
    output: Annotated[
        YamlOutput | None, typer.Option("--output", "-o", help="Print the whole status at the end", show_default=False)
    ] = None,
) -> None:
    """Run the DDPJob of a file and follow it to its end.

    On a cluster, Ctrl-C stops this command and the job continues. With --local, each pod is a process of this machine that
    starts in the current directory, and Ctrl-C stops the job. Logs and volumes are kept in .ddpjob/runs.

    [bold]Examples[/bold]

      ddpjob run job.yaml

      ddpjob run job.yaml --set nodes=4 --env NCCL_DEBUG=INFO --detach

      ddpjob run job.yaml --dry-run=server

      ddpjob run --local job.yaml
    """
    from ddpjob_cli.manifest import read_manifest

    manifest = read_manifest(file, settings=set_ or (), variables=env or ())
    if dry_run is DryRun.CLIENT or not local:
        from ddpjob_cli.run_cluster import run_cluster, show

        if dry_run is DryRun.CLIENT:
            show(manifest.objects)
            return
        raise typer.Exit(
            run_cluster(
                manifest, detach=detach, dry_run=dry_run is not None, verbose=verbose, show_status=output is not None
            )
        )
    if dry_run or detach:
        raise CommandError("run: --dry-run=server and --detach need a cluster; leave out --local")
    from ddpjob_cli.run_local import run_local

    raise typer.Exit(run_local(manifest, verbose=verbose, show_status=output is not None))
