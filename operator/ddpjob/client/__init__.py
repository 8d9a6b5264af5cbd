"""Submit, follow and manage DDPJobs from Python.

`Client` is for scripts and notebooks, `AsyncClient` has the same methods as coroutines. Both use the kubeconfig as kubectl
does, or the service account inside a cluster:

    with Client(namespace="team-a") as client:
        job = client.submit(train, nodes=2, gpus_per_node=4, args={"epochs": 3})
        for line in client.logs(job.name, follow=True):
            print(line.rank, line.text)
        client.wait(job.name, until="succeeded", timeout=60)
"""

import importlib
from typing import TYPE_CHECKING, Any

from ddpjob.client.asynchronous import ALL_NAMESPACES, AsyncClient
from ddpjob.client.errors import (
    ClientError,
    ConflictError,
    CredentialError,
    ForbiddenError,
    NotFoundError,
    NotInstalledError,
    RejectedError,
    UnreachableError,
    WaitTimeoutError,
)
from ddpjob.client.jobs import Goal, Job, JobEvent, Pod
from ddpjob.client.synchronous import Client

if TYPE_CHECKING:
    from ddpjob.client.files import Files, read_folder
    from ddpjob.client.inspection import RankProgress, RankStacks, RankState
    from ddpjob.client.logs import LogLine

__all__ = [
    "ALL_NAMESPACES",
    "AsyncClient",
    "Client",
    "ClientError",
    "ConflictError",
    "CredentialError",
    "Files",
    "ForbiddenError",
    "Goal",
    "Job",
    "JobEvent",
    "LogLine",
    "NotFoundError",
    "NotInstalledError",
    "Pod",
    "RankProgress",
    "RankStacks",
    "RankState",
    "RejectedError",
    "UnreachableError",
    "WaitTimeoutError",
    "read_folder",
]

#: What is imported when a program first names it, because a command that reads the status of jobs needs none of it.
_LATE = {
    "Files": "files",
    "LogLine": "logs",
    "RankProgress": "inspection",
    "RankStacks": "inspection",
    "RankState": "inspection",
    "read_folder": "files",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
