"""`ddpjob exec`."""

import shutil
import subprocess
from typing import Annotated

import typer

from ddpjob_cli.failures import CommandError
from ddpjob_cli.options import CLUSTER, JobName, connect

CONTEXT_SETTINGS = {"ignore_unknown_options": True}


def command(
    job: JobName,
    program: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run", show_default=False)],
    rank: Annotated[int, typer.Option(help="Node rank", min=0)] = 0,
    interactive: Annotated[bool, typer.Option("--tty", "-t", help="With a terminal and its input")] = False,
) -> None:
    """Run a command in the container of a rank, by `kubectl exec`; the exit code is the command's.

    [bold]Examples[/bold]

      ddpjob exec resnet18 --rank 1 -- nvidia-smi

      ddpjob exec resnet18 -t -- bash
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CommandError("ddpjob exec uses kubectl, which is not on PATH; install it")
    with connect() as client:
        seen = client.get(job)
        pods = {pod.rank: pod for pod in client.pods(seen, attempt=seen.status.attempt)}
    if rank not in pods:
        known = ", ".join(map(str, sorted(pods))) or "none"
        raise CommandError(
            f"DDPJob {seen.namespace}/{job}: attempt {seen.status.attempt} has no pod of rank {rank}; found: {known};"
            f" to see why: ddpjob status {job} -n {seen.namespace}"
        )
    if pods[rank].finished:
        raise CommandError(
            f"DDPJob {seen.namespace}/{job}: the pod of rank {rank} has ended ({pods[rank].state}); to see what it printed:"
            f" ddpjob logs {job} --rank {rank} -n {seen.namespace}"
        )
    done = subprocess.run(
        [kubectl, *exec_arguments(seen.namespace, pods[rank].name, program, interactive=interactive)], check=False
    )
    raise typer.Exit(done.returncode)


def exec_arguments(namespace: str, pod: str, program: list[str], *, interactive: bool) -> list[str]:
    """The arguments of kubectl, with the cluster options of this invocation."""
    from ddpjob_operator.api.names import MAIN_CONTAINER

    cluster = (("--context", CLUSTER.context), ("--kubeconfig", CLUSTER.kubeconfig))
    options = [part for option, value in cluster if value for part in (option, value)]
    terminal = ["--stdin", "--tty"] if interactive else []
    return [*options, "exec", "--namespace", namespace, pod, "--container", MAIN_CONTAINER, *terminal, "--", *program]
