"""The table of commands, and the group that imports the module of a command only when that command runs.

To add a command: write `commands/<name>.py` with a function `command` (typer's annotations; its docstring is the help), and a
line in COMMANDS. A command that talks to a cluster gets the options for it (`options.py`) without declaring them.
"""

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command as `ddpjob --help` shows it."""

    panel: str
    help: str
    cluster: bool = True
    """Whether the command takes the options for a cluster."""
    all_namespaces: bool = False
    """Whether -A has an effect."""
    local_runs: bool = False
    """Whether the directory of a local run is accepted in place of the name of a job."""

    @staticmethod
    def module(name: str) -> str:
        """The module with the function `command`."""
        return f"ddpjob_cli.commands.{name.replace('-', '_')}"


_RUN, _LOOK, _CHANGE, _FILES = "Run", "Look", "Change", "Files and clusters"

COMMANDS: dict[str, Entry] = {
    "init": Entry(panel=_RUN, help="Write a commented ddpjob.yaml", cluster=False),
    "run": Entry(panel=_RUN, help="Run a job and follow it to its end, on a cluster or on this machine"),
    "wait": Entry(panel=_RUN, help="Wait until a job runs, succeeds, fails or finishes", local_runs=True),
    "list": Entry(panel=_LOOK, help="List jobs", all_namespaces=True),
    "status": Entry(panel=_LOOK, help="Show one job on one screen", local_runs=True),
    "logs": Entry(panel=_LOOK, help="Show what the ranks print, merged", local_runs=True),
    "events": Entry(panel=_LOOK, help="Show the events of a job and its pods"),
    "explain": Entry(panel=_LOOK, help="Say why a job waits or failed, and what to do", local_runs=True),
    "top": Entry(panel=_LOOK, help="Show each rank live: step, speed, where its time goes, memory", local_runs=True),
    "stacks": Entry(panel=_LOOK, help="Show the Python stacks of the ranks", local_runs=True),
    "plot": Entry(panel=_LOOK, help="Draw the curves of a job", local_runs=True),
    "report": Entry(panel=_LOOK, help="Write a report about a job to send to a colleague", local_runs=True),
    "suspend": Entry(panel=_CHANGE, help="Stop the pods of a job, which may save their work"),
    "resume": Entry(panel=_CHANGE, help="Start a suspended job again"),
    "restart": Entry(panel=_CHANGE, help="Stop the pods of a job and start the next attempt"),
    "delete": Entry(panel=_CHANGE, help="Delete a job, its pods and their logs", local_runs=True),
    "exec": Entry(panel=_CHANGE, help="Run a command in the pod of a rank"),
    "validate": Entry(panel=_FILES, help="Check a file by the rules of the API, without a cluster", cluster=False),
    "render": Entry(panel=_FILES, help="Show a job with its defaults, or its pods, without a cluster", cluster=False),
    "convert": Entry(panel=_FILES, help="Convert a PyTorchJob or TrainJob into a DDPJob", cluster=False),
    "doctor": Entry(panel=_FILES, help="Check whether jobs can run on the cluster"),
}


class LazyGroup(TyperGroup):
    """Shows its commands from the table and imports the module of the one that runs."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """All commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command, imported."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the arguments; an unknown one suggests those of similar names."""
        self.commands = {name: _Listed(name) for name in self.list_commands(ctx)}
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the group, from the table alone."""
        listed = _ListedGroup(
            name=self.name,
            help=self.help,
            params=self.params,
            commands={name: _Listed(name) for name in self.list_commands(ctx)},
            context_settings=HELP_OPTIONS,
        )
        listed.format_help(ctx, formatter)


class _ListedGroup(TyperGroup):
    """What `--help` shows."""


class _Listed(TyperCommand):
    """A command as the list in `--help` shows it; its module is not imported."""

    def __init__(self, name: str) -> None:
        entry = COMMANDS[name]
        super().__init__(name=name, help=entry.help, short_help=entry.help, rich_help_panel=entry.panel)


def load_command(name: str) -> Any:
    """Import a command and add the options for a cluster."""
    from ddpjob_cli.options import cluster_options

    entry = COMMANDS[name]
    if entry.cluster:
        from ddpjob_cli.late_certificates import read_certificates_late

        read_certificates_late()
    module = importlib.import_module(Entry.module(name))
    single = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    settings = {**HELP_OPTIONS, **getattr(module, "CONTEXT_SETTINGS", {})}
    kind = getattr(module, "COMMAND_CLASS", TyperCommand)
    single.command(name=name, cls=kind, short_help=entry.help, context_settings=settings)(module.command)
    command = typer.main.get_command(single)
    command.help = unwrapped(command.help or "")
    command.callback = _guarded(name, entry, command.callback)
    if entry.cluster:
        command.params.extend(cluster_options())
    for param in command.params:
        if param.name == "all_namespaces":
            param.hidden = not entry.all_namespaces  # type: ignore[attr-defined]  # each of them is an option
    return command


def unwrapped(text: str) -> str:
    """A help text with each paragraph on one line, which then breaks where the terminal ends; examples are indented lines."""
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else paragraph.replace("\n", " ") for paragraph in text.split("\n\n")
    )


def _guarded(name: str, entry: Entry, callback: Any) -> Any:
    """The function of a command, which refuses -A where it has no effect, and ends quietly when its reader has."""
    from ddpjob_cli.failures import CommandError, end_of_reader
    from ddpjob_cli.local_runs import is_run, run_of
    from ddpjob_cli.options import CLUSTER

    @functools.wraps(callback)
    def run(*args: Any, **kwargs: Any) -> Any:
        if CLUSTER.all_namespaces and not entry.all_namespaces:
            raise CommandError(
                f"-A has no effect on `ddpjob {name}`, which deals with one namespace; name it with -n, or find a job with"
                " ddpjob list -A"
            )
        if not entry.local_runs and is_run(kwargs.get("job", "")):
            raise CommandError(
                f"{kwargs['job']} is not the name of a job: `ddpjob {name}` works on jobs of a cluster. The commands"
                f" {', '.join(known for known, other in COMMANDS.items() if other.local_runs)} also take the directory of a"
                " local run"
            )
        try:
            return callback(*args, **kwargs)
        except BrokenPipeError:  # click's own exit code means that the job failed
            end_of_reader()
        except Exception as error:
            asks_cluster = entry.local_runs and not is_run(kwargs["job"]) and not isinstance(error, CommandError)
            if asks_cluster and (found := run_of(kwargs["job"])):
                error.add_note(f"there is a local run of a similar name: ddpjob {name} {found}")
            raise

    return run


def application() -> Any:
    """The group of all commands."""
    from ddpjob_cli.options import CLUSTER, cluster_options

    CLUSTER.reset()
    app = typer.Typer(
        cls=LazyGroup,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings=HELP_OPTIONS,
        help=HELP,
    )
    app.callback()(_root)
    group = typer.main.get_command(app)
    group.params.extend(cluster_options())
    return group


HELP = """Run distributed PyTorch training on Kubernetes, and see what it does.

Exit codes: 0 succeeded, 1 the job failed, 2 wrong use or an invalid file, 3 the cluster cannot be reached or forbids it, 124 time-out, 130 interrupted by Ctrl-C (a job on a cluster continues).
"""


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"ddpjob {version('ddpjob')}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit", is_eager=True, callback=_print_version
    ),
) -> None:
    del version
