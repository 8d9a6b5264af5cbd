"""How the cluster side names a job in its dictionaries and queues."""

from ddpjob_operator.core.model import Job

Key = tuple[str, str]
"""Namespace and name of a job."""


def key_of(job: Job) -> Key:
    """The key of a job."""
    return (job.namespace, job.name)
