"""Time the operator on a control plane with KWOK nodes, which is brought up for each measure."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields
from pathlib import Path

import testbed
from bench import driver
from bench.operators import measures
from bench.operators.measures import Bench, Sizes
from bench.operators.process import TimedOperator
from ddpjob_measure import record
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from support import installation

#: Whose versions the figures depend on.
PACKAGES = ("kubernetes", "kopf", "aiohttp", "pydantic")
#: A KWOK node takes 500 pods.
NODES = 24
MEASURES: Mapping[str, Callable[[Bench], Awaitable[None]]] = {
    "storm-floor": measures.floor_of_the_storm,
    "lives": measures.lives,
    "many": measures.many,
}


def main() -> int:
    """Measure, print, save; returns the exit code."""
    parser = driver.parser_of("bench.operators", __doc__, "operator")
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"some of {', '.join(MEASURES)} (default: all)")
    parser.add_argument("--operator-arguments", default="", help="more arguments for the operator")
    for size in fields(Sizes):
        option = f"--{size.name.replace('_', '-')}"
        parser.add_argument(option, type=type(size.default), default=size.default, metavar="N")
    given = parser.parse_args()
    if unknown := set(given.measures) - MEASURES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: no such measure; expected some of {', '.join(MEASURES)}")
    sizes = Sizes(**{size.name: getattr(given, size.name) for size in fields(Sizes)})
    run = driver.Run(given, "The operator", record.facts(PACKAGES))
    for name in given.measures or MEASURES:
        asyncio.run(measure(given, name, run, sizes))
    return run.end()


async def measure(given: argparse.Namespace, name: str, run: driver.Run, sizes: Sizes) -> None:
    """One measure on a fresh control plane."""
    # KWOK nodes must not be reported as lost because the machine is busy.
    control_plane = testbed.ControlPlane(node_monitor_grace_seconds=600)
    with control_plane, tempfile.TemporaryDirectory() as folder:
        kubeconfig = installation.install(control_plane)
        control_plane.add_kwok_nodes(NODES)
        arguments = (*installation.LEASE, *shlex.split(given.operator_arguments))
        operator = TimedOperator(kubeconfig, Path(folder) / "operator.log", *arguments)
        operator.start()
        try:
            access = await load_access(kubeconfig=str(control_plane.kubeconfig))
            async with Client(access.configuration) as client:
                run.facts["cluster"] = await client.server_version()
                pids = {program: component.pid for program, component in control_plane.components.items()}
                bench = Bench(client=client, operator=operator, sizes=sizes, neighbours=pids, run=run)
                await MEASURES[name](bench)
        finally:
            operator.stop()


if __name__ == "__main__":
    sys.exit(main())
