"""The events of a job, for commands that are of use without them."""

from typing import TYPE_CHECKING

from ddpjob_cli.output import note

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob.client import Client, Job, JobEvent
    from ddpjob_cli.local_runs import RunDirectory


def events_if_allowed(
    client: "Client | RunDirectory", job: "Job", on_note: "Callable[[str], None]" = note
) -> "list[JobEvent]":
    """The events of a job and its pods, oldest first; none, with a note, for a user who may not list events."""
    from ddpjob.client import ForbiddenError

    try:
        return client.events(job.name, namespace=job.namespace)
    except ForbiddenError as error:
        on_note(str(error))
        return []
