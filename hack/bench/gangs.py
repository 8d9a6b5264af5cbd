"""How much time two gangs lose that compete for one node, by scheduling provider.

Each pair of jobs needs all GPUs of one node, twice: one gang runs after the other. Without a scheduler that knows of gangs
each may get a part of the node, and then one has to release it. With nothing lost a pair takes twice the time that a gang
runs; all beyond that is lost.

`python -m bench.gangs` prints a table; the same pairs are a test of the operator (`test_two_gangs.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import testbed
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.resources import Resource
from support import installation
from support.competing_gangs import NUM_GPUS, Pair, compete
from support.operator_cluster import Namespace, eventually
from support.operator_process import OperatorProcess

NAMESPACES = Resource(prefix="/api/v1", plural="namespaces")
SERVICE_ACCOUNTS = Resource(prefix="/api/v1", plural="serviceaccounts")


def row(provider: str, pairs: Sequence[Pair], run_seconds: float) -> str:
    """One line of the table."""
    lost = sorted(pair.seconds - 2 * run_seconds for pair in pairs)
    released = sum(pair.num_given_back for pair in pairs)
    return f"| {provider} | {len(pairs)} | {statistics.median(lost):.1f} | {lost[-1]:.1f} | {released} |"


async def measure(provider: str, cluster: testbed.ControlPlane, trials: int, run_seconds: float, folder: Path) -> str:
    """Run the pairs with an operator that uses this provider; gives the line of the table."""
    nodes = cluster.add_kwok_nodes(trials, gpus=NUM_GPUS)
    operator = OperatorProcess(cluster.kubeconfig, folder / f"{provider}.log", "--scheduling-provider", provider)
    operator.start()
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    try:
        async with Client((await load_access()).configuration) as client:
            namespace = Namespace(client, f"pairs-{provider}")
            await client.create(
                NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace.name}}
            )
            await eventually("the default service account", lambda: namespace.find(SERVICE_ACCOUNTS, "default"))
            pairs = await compete(namespace, cluster, nodes, run_seconds=run_seconds)
    finally:
        operator.stop()
    return row(provider, pairs, run_seconds)


def main() -> None:
    """Measure each provider in turn, on one control plane, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gangs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=10, help="number of pairs, which run at the same time (default: 10)"
    )
    parser.add_argument("--run-seconds", type=float, default=30.0, help="how long each gang runs (default: 30)")
    parser.add_argument("--providers", nargs="+", default=["none", "native"], help="default: none native")
    given = parser.parse_args()
    cluster = testbed.ControlPlane(gang_scheduling=True, node_monitor_grace_seconds=600)
    with cluster, tempfile.TemporaryDirectory() as folder:
        installation.install(cluster)
        measured = measure_all(cluster, given.providers, given.trials, given.run_seconds, Path(folder))
        rows = asyncio.run(measured)
    print(f"pairs of gangs with {NUM_GPUS} pods for {NUM_GPUS} GPUs; each gang runs {given.run_seconds:g} s")
    print("| provider | pairs | lost by a pair, median s | most s | gangs released |")
    print("| --- | --- | --- | --- | --- |")
    print("\n".join(rows))


async def measure_all(
    cluster: testbed.ControlPlane, providers: Sequence[str], trials: int, run_seconds: float, folder: Path
) -> list[str]:
    """One provider after the other."""
    return [await measure(provider, cluster, trials, run_seconds, folder) for provider in providers]


if __name__ == "__main__":
    main()
