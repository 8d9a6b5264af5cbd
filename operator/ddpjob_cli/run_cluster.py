"""`ddpjob run` on a cluster: applies the objects of the file, then follows the job."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddpjob.client import Client, Job, NotFoundError
from ddpjob.client.jobs import read_job
from ddpjob_cli.commands.logs import prefixed
from ddpjob_cli.failures import EXIT_FAILED, EXIT_SUCCEEDED, CommandError
from ddpjob_cli.manifest import Manifest
from ddpjob_cli.options import CLUSTER, Output, connect
from ddpjob_cli.output import console, note, print_data
from ddpjob_cli.rendering import outcome
from ddpjob_operator.api.names import KIND, contract


def run_cluster(manifest: Manifest, *, detach: bool, dry_run: bool, verbose: bool) -> int:
    """Apply the objects and follow the job; the result is the exit code."""
    if manifest.others:
        note(f"these objects of the file are not applied: {', '.join(manifest.others)}; to apply them: kubectl apply")
    with connect() as client:
        namespace = CLUSTER.namespace or manifest.given_namespace or client.namespace
        if not dry_run:
            _refuse_finished(client, manifest.name, namespace)
        bodies = [client.apply(body, namespace=namespace, dry_run=dry_run) for body in manifest.objects]
        if dry_run:
            show(bodies)
            return EXIT_SUCCEEDED
        job = read_job(next(body for body in bodies if body["kind"] == KIND))
        where = f"{job.name} -n {job.namespace}"
        note(f"{job.namespace}/{job.name} is submitted to {client.server}; Ctrl-C stops this command, not the job")
        if detach:
            note(f"to follow it: ddpjob logs {where} -f; to see its state: ddpjob status {where}")
            return EXIT_SUCCEEDED
        try:
            finished = _follow(client, job, verbose=verbose)
        except KeyboardInterrupt:
            note(f"the job goes on; to follow it: ddpjob logs {where} -f; to delete it: ddpjob delete {where}")
            raise
    note(outcome(finished))
    return EXIT_SUCCEEDED if finished.succeeded else EXIT_FAILED


def show(bodies: Sequence[Mapping[str, Any]]) -> None:
    """Print objects as the documents of a YAML file."""
    for number, body in enumerate(bodies):
        if number:
            print("---")
        print_data(dict(body), Output.YAML)


def _refuse_finished(client: Client, name: str, namespace: str) -> None:
    """A finished job never runs again, so applying its file once more would only show the old result."""
    try:
        job = client.get(name, namespace=namespace)
    except NotFoundError:
        return
    if job.finished:
        raise CommandError(
            f"{KIND} {namespace}/{name} exists and has {job.phase.lower()}, so it does not run again; delete it (ddpjob"
            f" delete {name} -n {namespace}) or change metadata.name in the file"
        )


def _follow(client: Client, job: Job, *, verbose: bool) -> Job:
    """Print the lines of all ranks until the job has finished."""
    out = console()
    for line in client.logs(job.name, namespace=job.namespace, follow=True, on_note=note):
        if verbose or contract.PROGRESS_PREFIX not in line.text:
            out.print(prefixed(line), soft_wrap=True)
    return client.wait(job.name, namespace=job.namespace)
