"""The command line: `python -m testbed build | up | down | status | load | path`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

from testbed import tools
from testbed.controlplane import ControlPlane
from testbed.instance import Instance, InstanceError, instances
from testbed.kubectl import KubectlError
from testbed.processes import ComponentError
from testbed.tools.go import GoNotFoundError
from testbed.waiting import DeadlineError

DEFAULT_NAME = "testbed"


def build(arguments: argparse.Namespace) -> None:
    """Build the programs into the cache."""
    tools.build(tools.CONTROL_PLANE | tools.NODES if arguments.nodes else tools.CONTROL_PLANE)


def up(arguments: argparse.Namespace) -> None:
    """Start a cluster that outlives this command."""
    control_plane = ControlPlane(arguments.name)
    control_plane.start()
    control_plane.instance.detach()
    print(f"export KUBECONFIG={control_plane.kubeconfig}")


def down(arguments: argparse.Namespace) -> None:
    """Remove a cluster with everything it made."""
    Instance(arguments.name).remove()


def status(_arguments: argparse.Namespace) -> None:
    """List the clusters."""
    for instance in instances():
        state = "running" if instance.alive else "left over; the next up removes it"
        print(f"{instance.name}: {state}; {instance.description.get('server', 'starting')}; {instance.folder}")


def path(arguments: argparse.Namespace) -> None:
    """Print the path of a program, built first where it is missing."""
    print(tools.path(arguments.program))


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "build": build,
    "up": up,
    "down": down,
    "status": status,
    "path": path,
}


def main() -> int:
    """Run one command; the exit code is 1 where it failed for a reason that its message gives."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    parsers = {name: commands.add_parser(name, help=command.__doc__) for name, command in _COMMANDS.items()}
    parsers["build"].add_argument("--nodes", action="store_true", help="also what real nodes need")
    for name in ("up", "down"):
        parsers[name].add_argument("--name", default=DEFAULT_NAME, help=f"the cluster (default: {DEFAULT_NAME})")
    parsers["path"].add_argument("program", help="for example helm or kubectl")
    arguments = parser.parse_args()
    try:
        _COMMANDS[arguments.command](arguments)
    except (
        ComponentError,
        DeadlineError,
        GoNotFoundError,
        InstanceError,
        KubectlError,
        tools.BuildError,
    ) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
