"""The key of a job in the dictionaries and queues of the cluster side."""

from typing import Any

from ddpjob_operator.core.model import Job

Key = tuple[str, str]
"""Namespace and name of a job."""


def key_of(job: Job) -> Key:
    """The key of a job."""
    return (job.namespace, job.name)


def about(key: Key, **fields: str | int | None) -> dict[str, Any]:
    """The `extra` of a log message about a job: what `--log-format=json` shows as fields of the line."""
    namespace, name = key
    return {"job": {"namespace": namespace, "name": name, **fields}}
