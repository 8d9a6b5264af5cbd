"""Time an operator and print one table; the same as JSON is written next to it.

Without options it brings up a control plane with KWOK nodes and this project's operator. To time another one, run
it against a cluster whose nodes know the stages of `tests/testbed/kwok/stages.yaml`, and name its kubeconfig, a template of
its jobs, their plural and the selector of their pods.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import testbed
from bench.operators import measures, record, tenants
from bench.operators.api import Api
from bench.operators.jobs import JobKind
from bench.operators.measures import Bench, Row, Sizes
from bench.operators.process import DDPJobOperator, OperatorUnderTest
from ddpjob_operator.api import names
from ddpjob_operator.transport.resources import MANAGED
from support import installation

RESULTS = Path(__file__).parents[1] / "results"
#: A KWOK node takes 500 pods.
NODES = 24

MEASURES: Mapping[str, Callable[[Bench], Awaitable[None]]] = {
    "floor": measures.floor,
    "storm-floor": measures.floor_of_the_storm,
    "lives": measures.lives,
    "many": measures.many,
    "failover": measures.failover,
    "tenants": tenants.tenants,
}


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.operators", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"some of {', '.join(MEASURES)} (default: all)")
    parser.add_argument("--name", default="operator", help="name of the record in --results (default: operator)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--operator-arguments", default="", help="more arguments for this project's operator")
    foreign = parser.add_argument_group("another operator, which runs already")
    foreign.add_argument(
        "--kubeconfig", type=Path, help="its cluster; without it, a cluster and an operator are started"
    )
    foreign.add_argument("--job-template", type=Path, help="YAML of one job with $name and $pods")
    foreign.add_argument("--job-plural", default=names.PLURAL, help="plural of its resource, for example jobsets")
    foreign.add_argument("--pod-selector", default=MANAGED, help="label selector of the pods it makes")
    foreign.add_argument("--operator-pid", type=int, help="its process, for CPU and memory")
    foreign.add_argument("--metrics-url", help="its metrics page, for requests")
    sizes = parser.add_argument_group("sizes")
    for size in fields(Sizes):
        option = f"--{size.name.replace('_', '-')}"
        sizes.add_argument(option, type=type(size.default), default=size.default, metavar="N")
    given = parser.parse_args(argv)
    if unknown := set(given.measures) - MEASURES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: no such measure; expected some of {', '.join(MEASURES)}")
    return given


@contextlib.contextmanager
def operator_of(given: argparse.Namespace) -> Iterator[tuple[Path, OperatorUnderTest, dict[str, int]]]:
    """The kubeconfig, the operator to time, and the process ids of the control plane."""
    if given.kubeconfig is not None:
        yield given.kubeconfig, OperatorUnderTest(given.operator_pid, given.metrics_url), {}
        return
    # KWOK nodes must not be reported as lost because the machine is busy.
    control_plane = testbed.ControlPlane(node_monitor_grace_seconds=600)
    with control_plane, tempfile.TemporaryDirectory() as folder:
        kubeconfig = installation.install(control_plane)
        control_plane.add_kwok_nodes(NODES)
        arguments = (*installation.LEASE, *shlex.split(given.operator_arguments))
        with DDPJobOperator(kubeconfig, Path(folder) / "operator.log", *arguments) as operator:
            pids = {name: component.pid for name, component in control_plane.components.items()}
            yield control_plane.kubeconfig, operator, pids


def sizes_of(given: argparse.Namespace) -> Sizes:
    """How much of everything is asked for."""
    return Sizes(**{size.name: getattr(given, size.name) for size in fields(Sizes)})


async def measure(given: argparse.Namespace, name: str) -> tuple[dict[str, object], list[Row]]:
    """One measure on a fresh control plane, or on the one that is given."""
    with operator_of(given) as (kubeconfig, operator, pids):
        async with await Api.of(kubeconfig) as api:
            kind = JobKind.of(given.job_template, given.job_plural, given.pod_selector)
            facts = await record.surroundings(api, given.name)
            bench = Bench(api=api, kind=kind, operator=operator, sizes=sizes_of(given), neighbours=pids)
            await MEASURES[name](bench)
            return facts, bench.rows


def main() -> None:
    """Measure, print, save."""
    given = arguments_of(sys.argv[1:])
    facts: dict[str, object] = {}
    rows: list[Row] = []
    sizes = sizes_of(given)
    for name in given.measures or MEASURES:
        new_facts, new_rows = asyncio.run(measure(given, name))
        facts = facts or new_facts
        rows += new_rows
        record.save(given.results, given.name, facts, sizes, rows)  # Each time: a later measure may fail.
    rows += measures.against_the_floor(rows)
    record.save(given.results, given.name, facts, sizes, rows)
    print(record.table(facts, rows), end="")


if __name__ == "__main__":
    main()
