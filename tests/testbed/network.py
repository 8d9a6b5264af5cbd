"""The machine's part of the pod network: one bridge per node, and no way for a packet to leave the machine.

Nodes' bridges reach each other through the machine's own forwarding. What goes to a service's or pod's address that is not
programmed (yet) finds an `unreachable` route, and a rule drops whatever would be forwarded between a bridge and anything else.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import TestbedError
from testbed.journal import Journal
from testbed.servers import SERVICE_RANGE

POD_RANGE = "10.244.0.0/16"

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")

_STAY_INSIDE = """\
table inet testbed {
    chain forward {
        type filter hook forward priority 0; policy accept;
        iifname "testbed*" oifname != "testbed*" drop
        iifname != "testbed*" oifname "testbed*" drop
    }
}
"""


class NetworkError(TestbedError):
    """The machine's network does not allow the pod network."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subnet:
    """The pods of one node: 10.244.NUMBER.0/24 on a bridge of their own."""

    number: int

    @property
    def bridge(self) -> str:
        """The network device."""
        return f"testbed{self.number}"

    @property
    def range(self) -> str:
        """Its addresses."""
        return f"10.244.{self.number}.0/24"

    @property
    def gateway(self) -> str:
        """The bridge's own address: the node's."""
        return f"10.244.{self.number}.1"


def set_up(journal: Journal, subnets: Sequence[Subnet]) -> None:
    """Make the bridges, routes and rules; each is in the journal first.

    Raises:
        NetworkError: an address range is in use, as by another cluster on this machine, or a command failed.
    """
    _refuse_overlap()
    for destination in (SERVICE_RANGE, POD_RANGE):
        journal.record("route", destination=destination)
        _ip("route", "add", "unreachable", destination)
    journal.record("nft table", family="inet", name="testbed")
    _run(["nft", "-f", "-"], stdin=_STAY_INSIDE)
    # kube-proxy's tables, which it leaves behind.
    for family in ("ip", "ip6"):
        journal.record("nft table", family=family, name="kube-proxy")
    journal.record("sysctl", path=str(_FORWARD), before=_FORWARD.read_text())
    _FORWARD.write_text("1")
    for subnet in subnets:
        journal.record("link", name=subnet.bridge)
        _ip("link", "add", subnet.bridge, "type", "bridge")
        # Pinned: a bridge otherwise takes the lowest address among its ports, which changes as pods come and go, and
        # packets to the old one are lost.
        _ip("link", "set", subnet.bridge, "address", f"02:00:0a:f4:{subnet.number:02x}:01", "up")
        _ip("address", "add", f"{subnet.gateway}/24", "dev", subnet.bridge)


def _refuse_overlap() -> None:
    ours = [ipaddress.ip_network(range_) for range_ in (SERVICE_RANGE, POD_RANGE)]
    shown = subprocess.run(["ip", "-json", "route"], capture_output=True, text=True, timeout=10, check=True).stdout
    for route in json.loads(shown or "[]"):
        if route["dst"] != "default" and any(ipaddress.ip_network(route["dst"]).overlaps(network) for network in ours):
            raise NetworkError(
                f"the route {route['dst']} of this machine overlaps {SERVICE_RANGE} or {POD_RANGE}, which the test bed "
                "needs: another cluster is running here (python -m testbed status), or the network uses these addresses"
            )


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments], stdin=None)


def _run(command: list[str], *, stdin: str | None) -> None:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
