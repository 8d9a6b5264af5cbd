"""`ddpjob delete`."""

from ddpjob_cli.options import JobName, connect
from ddpjob_cli.output import note


def command(job: JobName) -> None:
    """Delete a job, its pods and their logs. Checkpoints and other files in volumes stay.

    [bold]Example[/bold]

      ddpjob delete resnet18
    """
    with connect() as client:
        seen = client.delete(job)
    note(
        f"{seen.namespace}/{seen.name} is deleted with its pods and their logs; files in volumes, such as checkpoints, stay"
    )
