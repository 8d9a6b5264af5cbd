"""The jobs that are timed, and the bare objects of the floor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.transport.resources import DDPJOBS
from support.operator_cluster import Namespace

Body = dict[str, Any]
#: Requests in flight; more only queue up in the API server.
MAX_PARALLEL = 32


async def at_once(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """All of these requests, as many at a time as are worth it."""
    slots = asyncio.Semaphore(MAX_PARALLEL)

    async def one(request: Coroutine[Any, Any, Any]) -> None:
        async with slots:
            await request

    await asyncio.gather(*map(one, work))


def job_names(first: int, number: int) -> list[str]:
    """Names that sort as they count."""
    return [f"b{index:04d}" for index in range(first, first + number)]


async def create(jobs: Namespace, name: str, num_pods: int) -> None:
    """Create a job. On KWOK nodes its pods end as soon as they are deleted: no grace is in any figure."""
    at_once_gone = {"metadata": {"annotations": {"testbed/stop-after": "0s"}}}
    spec = {"nodes": num_pods, "trainer": {"recipe": "digits"}, "template": at_once_gone}
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}
    await jobs.client.create(DDPJOBS, jobs.name, body)


async def create_all(jobs: Namespace, job_names: Iterable[str], num_pods: int) -> None:
    """Create many at once."""
    await at_once(create(jobs, name, num_pods) for name in job_names)


async def delete_all(jobs: Namespace) -> None:
    """Delete all jobs of the namespace as kubectl does."""
    pages = jobs.client.pages(DDPJOBS, jobs.name)
    found = [item["metadata"]["name"] async for page in pages for item in page.items]
    await at_once(jobs.delete_job(name) for name in found)


def bare_pod(name: str) -> Body:
    """A pod about as large as an operator's."""
    env = [{"name": f"VARIABLE_{index}", "value": f"value-{index}"} for index in range(20)]
    container = {"name": "main", "image": "none", "command": ["true"], "env": env}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"bench": "floor", "pod": name}},
        "spec": {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]},
    }


def bare_policy(name: str) -> Body:
    """A NetworkPolicy like that of a job."""
    pods = {"podSelector": {"matchLabels": {"bench": name}}}
    spec = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


def bare_service(name: str) -> Body:
    """A headless Service of the pod with this name and `-0`."""
    spec = {"clusterIP": "None", "selector": {"pod": f"{name}-0"}, "ports": [{"port": 29500}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
