"""How much time two gangs lose that compete for one node, by scheduling provider.

Each pair of jobs needs all GPUs of one node, twice: one gang runs after the other. Without a scheduler that knows of gangs
each may get a part of the node, and then one has to release it. With nothing lost a pair takes twice the time that a gang
runs; all beyond that is lost. The same pairs are a test of the operator (`test_without_gang_scheduler.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import testbed
from bench import driver
from ddpjob_measure.task import Spread
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from support import installation
from support.competing_gangs import NUM_GPUS, compete
from support.operator_cluster import create_namespace
from support.operator_process import OperatorProcess


async def measure(provider: str, cluster: testbed.ControlPlane, given: argparse.Namespace, run: driver.Run) -> None:
    """Run the pairs with an operator that uses this provider."""
    nodes = cluster.add_kwok_nodes(given.trials, gpus=NUM_GPUS)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "operator.log")
        operator = OperatorProcess(cluster.kubeconfig, log, "--scheduling-provider", provider)
        operator.start()
        try:
            access = await load_access(kubeconfig=str(cluster.kubeconfig))
            async with Client(access.configuration) as client:
                namespace = await create_namespace(client, f"pairs-{provider}")
                pairs = await compete(namespace, cluster, nodes, run_seconds=given.run_seconds)
        finally:
            operator.stop()
    lost = Spread.of(pair.seconds - 2 * given.run_seconds for pair in pairs)
    released = sum(pair.num_given_back for pair in pairs)
    run.add({"provider": provider, "pairs": len(pairs), "lost by a pair, s": lost, "gangs released": released})


def main() -> int:
    """Measure each provider in turn, on one control plane, and print the table."""
    parser = driver.parser_of("bench.gangs", __doc__, "gangs")
    parser.add_argument("--trials", type=int, default=10, help="pairs, which run at the same time (default: 10)")
    parser.add_argument("--run-seconds", type=float, default=30.0, help="how long each gang runs (default: 30)")
    parser.add_argument("--providers", nargs="+", default=["none", "native"], help="default: none native")
    given = parser.parse_args()
    run = driver.Run(given, "Pairs of gangs that compete for a node", driver.of_operators())
    run.notes.append(f"Gangs have {NUM_GPUS} pods for the {NUM_GPUS} GPUs of a node, and run {given.run_seconds:g} s.")
    with testbed.ControlPlane(gang_scheduling=True, node_monitor_grace_seconds=600) as cluster:
        installation.install(cluster)
        for provider in given.providers:
            asyncio.run(measure(provider, cluster, given, run))
    return run.end()


if __name__ == "__main__":
    sys.exit(main())
