"""`ddpjob delete`."""

from ddpjob_cli.options import JobOrRun, look_at
from ddpjob_cli.output import note


def command(job: JobOrRun) -> None:
    """Delete a job, its pods and their logs. Checkpoints and other files in volumes stay.

    A local run is stopped, and can save its work first; its directory is removed with its logs and the volumes in it.

    [bold]Example[/bold]

      ddpjob delete resnet18

      ddpjob delete .ddpjob/runs/resnet18
    """
    from ddpjob_cli.local_runs import is_run
    from ddpjob_cli.rendering import local_run

    with look_at(job) as client:
        seen = client.delete(job)
    if is_run(job):
        note(f"{local_run(seen)} is removed with its logs and volumes; what a hostPath or an object store has stays")
        return
    note(
        f"{seen.namespace}/{seen.name} is deleted with its pods and their logs; files in volumes, such as checkpoints, stay"
    )
