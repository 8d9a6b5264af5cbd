"""`ddpjob explain`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from ddpjob_cli.events import events_if_allowed
from ddpjob_cli.options import JobOrRun, OutputOption, look_at
from ddpjob_cli.output import console, indented, name_of, note, print_data

if TYPE_CHECKING:
    from ddpjob.client import Client, Job, LogLine
    from ddpjob_cli.local_runs import RunDirectory

_LOG_LINES = 15


def command(job: JobOrRun, output: OutputOption = None) -> None:
    """Say why a job waits or failed, with the evidence, and what to do about it.

    [bold]Example[/bold]

      ddpjob explain resnet18
    """
    with look_at(job) as client:
        seen = client.get(job)
        from ddpjob_cli.explanation import explained

        pods = client.pods(seen, attempt=seen.status.attempt)
        sections = explained(seen, pods, events_if_allowed(client, seen), _log_of_the_failure(client, seen))
    if output:
        print_data([asdict(section) for section in sections], output, names=[name_of(seen.body)])
        return
    from rich.text import Text

    for section in sections:
        console().print(Text(section.title, style="bold"))
        for line in section.lines:
            console().print(indented(line))


def _log_of_the_failure(client: "Client | RunDirectory", job: "Job") -> "list[LogLine]":
    """The last lines of the rank that caused the last failure, if its pod is still there."""
    from ddpjob.client import ClientError

    failure = job.status.failure
    if failure is None or failure.rank is None or job.succeeded:
        return []
    try:
        lines = client.logs(
            job.name,
            namespace=job.namespace,
            ranks=[failure.rank],
            attempt=failure.attempt,
            tail_lines=_LOG_LINES,
            on_note=note,
        )
        return list(lines)
    except ClientError as error:
        note(str(error))
        return []
