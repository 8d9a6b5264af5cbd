"""`ddpjob run`."""

import shlex
import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ddpjob_cli.failures import CommandError
from ddpjob_cli.output import note, print_documents

if TYPE_CHECKING:
    from ddpjob_cli.manifest import Manifest


class DryRun(StrEnum):
    """How to check a file without running it."""

    CLIENT = "client"
    SERVER = "server"


class YamlOutput(StrEnum):
    """Formats of the status at the end."""

    YAML = "yaml"


class WithProgram(TyperCommand):
    """Takes what follows `--` as the program of the job, in `ctx.obj`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before `--`. What people type first has no `--`, or leaves python out: the error has the whole command."""
        position = args.index("--") if "--" in args else len(args)
        ctx.obj = args[position + 1 :]
        start = self._end_of_options(args[:position])
        if position == len(args) and start < position and _is_program(args[start]):
            self._refuse(ctx, "found a command without -- before it", args[:start], args[start:])
        if ctx.obj and ctx.obj[0].startswith("-"):
            end = self._end_of_options(ctx.obj)
            self._refuse(
                ctx, f"found the option {ctx.obj[0]} behind --", [*args[:position], *ctx.obj[:end]], ctx.obj[end:]
            )
        if ctx.obj and ctx.obj[0].endswith(".py") and shutil.which(ctx.obj[0]) is None:
            self._refuse(ctx, f"{ctx.obj[0]} is no program", args[:position], ctx.obj)
        if position < len(args) and not ctx.obj:
            ctx.fail("found no command after --; give one, such as: ddpjob run --nodes 2 -- torchrun train.py")
        return super().parse_args(ctx, args[:position])

    def _end_of_options(self, args: list[str]) -> int:
        """How many words are options and their values."""
        with_value = {name for param in self.params if not getattr(param, "is_flag", False) for name in param.opts}
        end = 0
        while end < len(args) and args[end].startswith("-"):
            end += 2 if args[end] in with_value else 1
        return end

    def _refuse(self, ctx: Any, fault: str, options: list[str], program: list[str]) -> None:
        launcher = ["python"] if program and program[0].endswith(".py") else []
        words = shlex.join([*options, "--", *launcher, *program])
        raise CommandError(
            f"run: {fault}; this is the command: {ctx.command_path} {words}"
        )  # on one line, to be copied


def _is_program(word: str) -> bool:
    """Whether a word in the place of FILE is a script or a program, and no file of a job."""
    return word.endswith(".py") or not (Path(word).exists() or shutil.which(word) is None)


COMMAND_CLASS = WithProgram


def command(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE | -- COMMAND...",
            help="YAML file with one DDPJob and the ConfigMaps that it uses; or what each pod runs",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of pods", show_default=False)] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of each pod", show_default=False)] = None,
    cpus: Annotated[
        str | None, typer.Option(help="CPUs that each pod requests, such as 4 or 500m", show_default=False)
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory that each pod requests, such as 16Gi", show_default=False)
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Image of the pods; by default the operator's trainer", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the job; by default that of the file or the script", show_default=False)
    ] = None,
    files: Annotated[
        bool,
        typer.Option(
            "--files/--no-files", help="With a command: whether the files of the current directory travel with the job"
        ),
    ] = True,
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
    """Run the DDPJob of a file, or a command in each pod, and follow it to its end.

    On a cluster, Ctrl-C stops this command and the job continues. With --local, each pod is a process of this machine that
    starts in the current directory, and Ctrl-C stops the job. Logs and volumes are kept in .ddpjob/runs. A command after -- that
    fails there is not restarted, unless a field of restart is set, for example with --set restart.maxRestarts=3. The command and
    the values of --env reach the program as written: nothing replaces $(NAME) in them.

    A command gets the files of the current directory, read-only, in its working directory /workspace: up to 500 files of
    1 MiB together, without hidden files and what .gitignore and .ddpjobignore exclude. A ConfigMap carries them, which is
    deleted with the job; it is no place for secrets. --dry-run lists the files. A link to another file is refused.

    [bold]Examples[/bold]

      ddpjob run job.yaml

      ddpjob run job.yaml --nodes 4 --set trainer.epochs=3 --env NCCL_DEBUG=INFO --detach

      ddpjob run --nodes 2 --gpus 4 --image registry.example.com/ml/torch:1 -- torchrun train.py --epochs 3

      ddpjob run job.yaml --dry-run=server

      ddpjob run --local job.yaml
    """
    from ddpjob_cli.manifest import command_manifest, read_manifest

    program: list[str] = ctx.obj
    if program and file:
        raise CommandError(f"run: found both {file} and a command after --; leave out one of them")
    if local and (detach or dry_run is DryRun.SERVER):
        raise CommandError("run: --dry-run=server and --detach need a cluster; leave out --local")
    fields = {
        "nodes": nodes,
        "gpusPerNode": gpus,
        "image": image,
        "resources.requests.cpu": cpus,
        "resources.requests.memory": memory,
    }
    given = [f"{field}={value}" for field, value in fields.items() if value is not None]
    settings = [*given, *(set_ or ())]
    if program:
        if local and not any(setting.removeprefix("spec.").startswith("restart") for setting in settings):
            settings.append("restart.maxRestarts=0")  # who tries a script wants to see its first failure
        manifest = command_manifest(
            program,
            name=name,
            settings=settings,
            variables=env or (),
            with_files=files and not local,
            starts_here=local,
        )
        _report_files(manifest, listed=dry_run is not None)
    elif file:
        manifest = read_manifest(file, name=name, settings=settings, variables=env or ())
    else:
        raise CommandError(
            "run: give a FILE, or a command after --, such as: ddpjob run --nodes 2 -- torchrun train.py"
        )

    if dry_run is DryRun.CLIENT:
        print_documents(manifest.objects)
        return
    if local:
        from ddpjob_cli.run_local import run_local

        raise typer.Exit(run_local(manifest, verbose=verbose, show_status=output is not None))
    from ddpjob_cli.run_cluster import run_cluster

    raise typer.Exit(
        run_cluster(
            manifest, detach=detach, dry_run=dry_run is not None, verbose=verbose, show_status=output is not None
        )
    )


def _report_files(manifest: "Manifest", *, listed: bool) -> None:
    from ddpjob.client.files import FOLDER, IGNORE_FILES, readable_size, secret_names

    if manifest.files:
        size = readable_size(sum(map(len, manifest.files.values())))
        count = f"{len(manifest.files)} file{'s' if len(manifest.files) > 1 else ''}"
        note(f"{count} ({size}) of {Path.cwd()} travel with the job, to {FOLDER} in its pods")
    for name, content in manifest.files.items() if listed else ():
        note(f"  {readable_size(len(content)):>9}  {name}")
    if found := secret_names(manifest.files):
        note(
            f"{', '.join(found)}: this looks like a secret, and whoever may read ConfigMaps in the namespace can read these files; to"
            f" keep them here, name them in {IGNORE_FILES[-1]}; to give them to the program, use a Secret"
        )
