"""The jobs that are timed, and the bare objects of the floor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.transport.resources import DDPJOBS, PODS, SERVICES, Resource
from support.operator_cluster import Namespace

POLICIES = Resource.of_version("networking.k8s.io/v1", "networkpolicies")
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


async def create(namespace: Namespace, name: str, num_pods: int) -> None:
    """Create a job. On KWOK nodes its pods end as soon as they are deleted: no grace is in any figure."""
    template = {"metadata": {"annotations": {"testbed/stop-after": "0s"}}}
    spec = {"nodes": num_pods, "trainer": {"recipe": "digits"}, "template": template}
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}
    await namespace.client.create(DDPJOBS, namespace.name, body)


async def delete_all(namespace: Namespace) -> None:
    """Delete all jobs of the namespace as kubectl does."""
    pages = namespace.client.pages(DDPJOBS, namespace.name)
    found = [item["metadata"]["name"] async for page in pages for item in page.items]
    await at_once(namespace.delete_job(name) for name in found)


async def create_bare(namespace: Namespace, name: str, num_pods: int) -> None:
    """Create what a job needs without a job: a headless Service of rank 0, a NetworkPolicy, and pods about as large as an operator's."""
    env = [{"name": f"VARIABLE_{index}", "value": f"value-{index}"} for index in range(20)]
    container = {"name": "main", "image": "none", "command": ["true"], "env": env}
    pod = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    pods = {"podSelector": {"matchLabels": {"bench": name}}}
    policy = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    service = {"clusterIP": "None", "selector": {"pod": f"{name}-0"}, "ports": [{"port": 29500}]}

    async def one(resource: Resource, api_version: str, kind: str, name: str, spec: Any) -> None:
        metadata = {"name": name, "labels": {"bench": "floor", "pod": name}}
        body = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
        await namespace.client.create(resource, namespace.name, body)

    await one(SERVICES, "v1", "Service", name, service)
    await one(POLICIES, "networking.k8s.io/v1", "NetworkPolicy", name, policy)
    for rank in range(num_pods):
        await one(PODS, "v1", "Pod", f"{name}-{rank}", pod)
