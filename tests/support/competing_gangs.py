"""Pairs of gangs that compete for one node each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import testbed
from ddpjob_operator.transport.errors import ApiError
from ddpjob_operator.transport.resources import DDPJOBS
from support.operator_cluster import Namespace, eventually

#: Of each of two jobs, and of the one node that they compete for.
NUM_GPUS = 4
#: A pair whose gangs release their nodes again and again takes minutes.
PAIR_SECONDS = 280.0
#: One list of all jobs, so that looking costs the API server little.
POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """How two gangs that competed for a node ended."""

    seconds: float
    """From the moment at which the node accepted pods until both had succeeded."""
    num_given_back: int
    """How often one of them released the nodes of a part of its pods."""
    num_restarts: int


async def compete(
    namespace: Namespace, cluster: testbed.ControlPlane, nodes: Sequence[str], *, run_seconds: float = 0.0
) -> list[Pair]:
    """Have two gangs compete for each of these nodes, all at the same time; a gang runs this long once all its pods run.

    All pods wait before the nodes accept any, as on a cluster whose nodes are taken.
    """
    kubectl = cluster.kubectl
    await asyncio.to_thread(kubectl, "cordon", *nodes)
    await asyncio.gather(*(_create(namespace, node) for node in nodes))
    await eventually("all pods to wait", lambda: _all_wait(namespace, 2 * NUM_GPUS * len(nodes)), PAIR_SECONDS)
    await asyncio.to_thread(kubectl, "uncordon", *nodes)
    began = time.monotonic()
    deadline = time.monotonic() + PAIR_SECONDS + 2 * run_seconds
    running: dict[str, float] = {}
    ended: dict[str, float] = {}
    stopped: set[str] = set()
    while len(ended) < 2 * len(nodes):
        now = time.monotonic()
        assert now < deadline, f"{2 * len(nodes) - len(ended)} gangs have not ended after {PAIR_SECONDS:.0f} s"
        statuses = await _statuses(namespace)
        for name, status in statuses.items():
            if status.get("phase") == "Running":
                running.setdefault(name, now)
            if status.get("phase") == "Succeeded":
                ended.setdefault(name, now)
        due = {name for name, since in running.items() if now >= since + run_seconds} - stopped
        await asyncio.gather(*(_end(namespace, name, statuses[name]["attempt"]) for name in due))
        stopped |= due
        await asyncio.sleep(POLL_SECONDS)
    return [_pair([statuses[name] for name in _names(node)], began, ended, node) for node in nodes]


def _names(node: str) -> tuple[str, str]:
    return f"{node}-a", f"{node}-b"


async def _create(namespace: Namespace, node: str) -> None:
    """Create both jobs of a node at the same moment."""
    here = {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}
    await asyncio.gather(
        *(namespace.apply(name, nodes=NUM_GPUS, gpusPerNode=1, template=here) for name in _names(node))
    )


async def _all_wait(namespace: Namespace, num_pods: int) -> bool:
    pods = await namespace.pods()
    conditions = (pod["status"].get("conditions") or () for pod in pods.values())
    return sum(any(c["type"] == "PodScheduled" for c in of_pod) for of_pod in conditions) == num_pods


async def _statuses(namespace: Namespace) -> dict[str, dict[str, Any]]:
    pages = namespace.client.pages(DDPJOBS, namespace.name)
    return {item["metadata"]["name"]: item.get("status") or {} async for page in pages for item in page.items}


async def _end(namespace: Namespace, name: str, attempt: int) -> None:
    """End the programs of a whole gang."""
    for rank in range(NUM_GPUS):
        with contextlib.suppress(ApiError):  # Gone meanwhile.
            await namespace.ends(f"{name}-{attempt}-{rank}", 0)


def _pair(statuses: Sequence[Mapping[str, Any]], began: float, ended: Mapping[str, float], node: str) -> Pair:
    return Pair(
        seconds=max(ended[name] for name in _names(node)) - began,
        num_given_back=sum(status["attempt"] - 1 for status in statuses),
        num_restarts=sum(status["restarts"]["counted"] + status["restarts"]["infrastructure"] for status in statuses),
    )
