"""`ddpjob run` on a cluster: applies the objects of the file, then follows the job.

What shows the job is imported after the job has been submitted, because the first request does not depend on it.
"""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from ddpjob.client import AsyncClient, Client, ClientError, Job, NotFoundError
from ddpjob.client.jobs import read_job
from ddpjob_cli.failures import EXIT_FAILED, EXIT_SUCCEEDED, CommandError
from ddpjob_cli.manifest import Manifest
from ddpjob_cli.options import CLUSTER, connect
from ddpjob_cli.output import note, print_documents
from ddpjob_operator.api.names import KIND

if TYPE_CHECKING:
    from ddpjob_cli.display import Display

#: After the end of the job the logs may take so long to arrive.
SECONDS_FOR_THE_LAST_LINES = 15.0
#: An operator writes the first status within a second.
SECONDS_WITHOUT_OPERATOR = 15.0


def run_cluster(manifest: Manifest, *, detach: bool, dry_run: bool, verbose: bool, show_status: bool) -> int:
    """Apply the objects and follow the job; the result is the exit code."""
    if manifest.others:
        note(f"these objects of the file are not applied: {', '.join(manifest.others)}; to apply them: kubectl apply")
    with connect() as client:
        namespace = CLUSTER.namespace or manifest.given_namespace or client.namespace
        if manifest.files:
            from ddpjob.client.files import config_map_of

            job = client.submit(manifest.body, files=manifest.files, namespace=namespace, dry_run=dry_run)
            bodies = [config_map_of(job.body, manifest.files), job.body]
        else:
            _refuse_finished(client, manifest.name, namespace)
            bodies = [client.apply(body, namespace=namespace, dry_run=dry_run) for body in manifest.objects]
            job = read_job(next(body for body in bodies if body["kind"] == KIND))
        if dry_run:
            print_documents(bodies)
            return EXIT_SUCCEEDED
        where = f"{job.name} -n {job.namespace}"
        submitted = f"{job.namespace}/{job.name} is submitted to {client.server}"
        if detach:
            note(f"{submitted}; to follow it: ddpjob logs {where} -f; to see its state: ddpjob status {where}")
            return EXIT_SUCCEEDED
        note(f"{submitted}; Ctrl-C stops this command, not the job")
        return show_to_the_end(client, job, manifest.spec.processes, verbose=verbose, show_status=show_status)


def show_to_the_end(client: Client, job: Job, processes: int, *, verbose: bool, show_status: bool) -> int:
    """Print the lines of all ranks and the changes of the status until the job has finished; the result is the exit code."""
    from ddpjob_cli.display import Display
    from ddpjob_cli.rendering import next_command, outcome, phase_style

    with Display(processes_per_node=processes, verbose=verbose, notes_on_stderr=True) as display:
        try:
            finished = client.call(_follow(client.asynchronous, job, display))
        except KeyboardInterrupt:
            where = f"{job.name} -n {job.namespace}"
            display.say(f"the job continues. To follow it: ddpjob logs {where} -f; to delete it: ddpjob delete {where}")
            raise
    if show_status:
        display.show_status(finished.status)
    else:
        display.show_summary(finished.status)
        display.say(f"  {'next':<9} {next_command(finished)}", style="")
    display.say(outcome(finished), f"bold {phase_style(finished.phase)}")
    return EXIT_SUCCEEDED if finished.succeeded else EXIT_FAILED


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


async def _follow(client: AsyncClient, job: Job, display: "Display") -> Job:
    """Show the lines of all ranks and the changes of the status until the job has finished."""

    async def show_lines() -> None:
        lines = client.logs(job.name, namespace=job.namespace, follow=True, on_note=display.on_note)
        async with aclosing(lines):
            async for line in lines:
                display.on_line(line.rank, line.text)

    async def report_silence() -> None:
        await asyncio.sleep(SECONDS_WITHOUT_OPERATOR)
        display.say(
            f"no operator has acted on the job for {SECONDS_WITHOUT_OPERATOR:g} s; to see why: ddpjob doctor -n {job.namespace}",
            "yellow",
        )

    printing, silence = asyncio.create_task(show_lines()), asyncio.create_task(report_silence())
    try:
        async with aclosing(client.watch(job.name, namespace=job.namespace)) as jobs:
            async for seen in jobs:
                if seen.status.phase:
                    silence.cancel()
                display.on_status(seen.status)
                if seen.finished:
                    break
        await asyncio.wait((printing,), timeout=SECONDS_FOR_THE_LAST_LINES)
    finally:
        printing.cancel()
        silence.cancel()
        results = await asyncio.gather(printing, silence, return_exceptions=True)
    if isinstance(results[0], ClientError):  # the outcome counts even where the log cannot be read
        display.say(str(results[0]), "yellow")
    return seen
