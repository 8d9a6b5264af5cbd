"""The command line: `python -m testbed build | up | down | status | load | path`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from testbed import tools
from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.errors import TestbedError
from testbed.instance import Instance, InstanceError, instances

DEFAULT_NAME = "testbed"


def build(arguments: argparse.Namespace) -> None:
    """Build the programs into the cache."""
    nodes = tools.NODES if arguments.nodes else {}
    tools.build([*tools.CONTROL_PLANE, *tools.MONITORING, *tools.OBJECT_STORE, *tools.GANGS, *nodes])


def up(arguments: argparse.Namespace) -> None:
    """Start a cluster that outlives this command; one that runs already is left as it is."""
    cluster = Cluster(arguments.name, nodes=arguments.nodes) if arguments.nodes else ControlPlane(arguments.name)
    if not _runs(arguments.name, arguments.nodes):
        cluster.start()
        cluster.detach()
    print(f"export KUBECONFIG={cluster.kubeconfig}")


def _runs(name: str, nodes: int) -> bool:
    """Whether a detached cluster of this name answers. One that does not is removed.

    Raises:
        InstanceError: it has another number of nodes.
    """
    instance = Instance(name)
    if not instance.detached:
        return False
    if not ControlPlane(name).serves:
        print(f"testbed: cluster {name} does not answer; restarting it", flush=True)
        instance.remove()
        return False
    if (found := int(instance.description.get("nodes", "0"))) != nodes:
        raise InstanceError(
            f"cluster {name} runs with {found} nodes, asked for were {nodes}: python -m testbed down --name {name} first"
        )
    return True


def down(arguments: argparse.Namespace) -> None:
    """Remove a cluster with everything it made."""
    Instance(arguments.name).remove()


def status(_arguments: argparse.Namespace) -> None:
    """List the clusters."""
    for instance in instances():
        state = "running" if instance.alive else "left over; the next up removes it"
        facts = instance.description
        print(f"{instance.name}: {state}; {facts.get('nodes', '0')} nodes; {facts.get('server')}; {instance.folder}")


def load(arguments: argparse.Namespace) -> None:
    """Import an OCI archive into all nodes of a running cluster."""
    print(Cluster.attach(arguments.name).load_image(arguments.archive))


def path(arguments: argparse.Namespace) -> None:
    """Print the path of a program, built first where it is missing."""
    print(tools.path(arguments.program))


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "build": build,
    "up": up,
    "down": down,
    "status": status,
    "load": load,
    "path": path,
}


def main() -> int:
    """Run one command; the exit code is 1 where it failed for a reason that its message gives."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name, help=command.__doc__) for name, command in _COMMANDS.items()}
    parsers["build"].add_argument("--nodes", action="store_true", help="also what real nodes need")
    for name in ("up", "down", "load"):
        parsers[name].add_argument("--name", default=DEFAULT_NAME, help=f"the cluster (default: {DEFAULT_NAME})")
    parsers["up"].add_argument("--nodes", type=int, default=0, help="real nodes; 0, the default, needs no root")
    parsers["load"].add_argument("archive", type=Path, help="an OCI archive of one image")
    parsers["path"].add_argument("program", help="for example helm or kubectl")
    arguments = parser.parse_args()
    try:
        _COMMANDS[arguments.command](arguments)
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
