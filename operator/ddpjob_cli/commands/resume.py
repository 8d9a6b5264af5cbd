"""`ddpjob resume`."""

from ddpjob_cli.options import JobName, connect
from ddpjob_cli.output import note


def command(job: JobName) -> None:
    """Start a suspended job again.

    [bold]Example[/bold]

      ddpjob resume resnet18
    """
    with connect() as client:
        seen = client.resume(job)
    note(f"{seen.namespace}/{seen.name} starts again; to follow it: ddpjob status {seen.name} -w -n {seen.namespace}")
