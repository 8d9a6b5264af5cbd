"""`ddpjob restart`."""

from ddpjob_cli.options import JobName, connect
from ddpjob_cli.output import note


def command(job: JobName) -> None:
    """Stop the pods of a job, which may save their work, and start the next attempt.

    [bold]Example[/bold]

      ddpjob restart resnet18
    """
    with connect() as client:
        seen = client.restart(job, on_note=note)
    note(
        f"{seen.namespace}/{seen.name} starts its next attempt; to follow it: ddpjob logs {seen.name} -f -n {seen.namespace}"
    )
