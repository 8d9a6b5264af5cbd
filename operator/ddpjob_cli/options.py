"""Options that several commands share, and how a command gets a client and where it prints.

The options for a cluster may be given before or after the name of the command.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ddpjob.client import Client
    from ddpjob_cli.local_runs import RunDirectory


@dataclass(slots=True)
class Cluster:
    """What the options say about the cluster."""

    namespace: str | None = None
    all_namespaces: bool = False
    context: str | None = None
    kubeconfig: str | None = None

    def reset(self) -> None:
        """Forget the options of an earlier invocation in this process."""
        self.namespace, self.all_namespaces, self.context, self.kubeconfig = None, False, None, None


#: The options of this invocation, which the callbacks below fill before the command runs.
CLUSTER = Cluster()


class Output(StrEnum):
    """Formats of commands that read."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def complete_jobs(incomplete: str) -> list[str]:
    """Names of jobs, for the shell's completion; nothing where the cluster does not answer."""
    from ddpjob.client import ClientError

    try:
        with connect() as client:
            return [job.name for job in client.list() if job.name.startswith(incomplete)]
    except ClientError:
        return []


JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Name of the job", autocompletion=complete_jobs, show_default=False)
]
JobOrRun = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Name of the job, or directory of a local run",
        autocompletion=complete_jobs,
        show_default=False,
    ),
]
OutputOption = Annotated[
    Output | None, typer.Option("--output", "-o", help="Print data or names instead of text", show_default=False)
]


def connect() -> "Client":
    """A client for the cluster of the options, to use in a `with` statement."""
    from ddpjob.client import Client

    return Client(namespace=CLUSTER.namespace, context=CLUSTER.context, kubeconfig=CLUSTER.kubeconfig)


def look_at(job: str) -> "Client | RunDirectory":
    """A client for the cluster of the options, or the reader of a local run if `job` is the path of its directory."""
    from ddpjob_cli.local_runs import RunDirectory, is_run

    return RunDirectory(Path(job)) if is_run(job) else connect()


def cluster_options() -> list[Any]:
    """The parameters -n, -A, --context and --kubeconfig, which store their values in CLUSTER."""
    app = typer.Typer(add_completion=False)
    app.command()(_cluster)
    params = [param for param in typer.main.get_command(app).params if param.name != "help"]
    for param in params:
        param.expose_value = False
        param.callback = _store
    return params


def _store(context: Any, param: Any, value: Any) -> Any:
    del context
    if value:
        setattr(CLUSTER, param.name, value)
    return value


def _cluster(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace; by default that of the context", rich_help_panel="Cluster"),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="All namespaces", rich_help_panel="Cluster")
    ] = False,
    context: Annotated[
        str | None, typer.Option("--context", help="Context of the kubeconfig", rich_help_panel="Cluster")
    ] = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option("--kubeconfig", help="Path of a kubeconfig instead of $KUBECONFIG", rich_help_panel="Cluster"),
    ] = None,
) -> None:
    """Only the parameters are used."""
