"""`ddpjob suspend`."""

from ddpjob_cli.options import JobName, connect
from ddpjob_cli.output import note


def command(job: JobName) -> None:
    """Stop the pods of a job. They may save their work; `ddpjob resume` starts the job again from its checkpoint.

    [bold]Example[/bold]

      ddpjob suspend resnet18
    """
    with connect() as client:
        seen = client.suspend(job)
    note(
        f"{seen.namespace}/{seen.name} is being suspended; to start it again: ddpjob resume {seen.name} -n {seen.namespace}"
    )
