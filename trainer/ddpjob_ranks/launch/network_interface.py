"""The network interface at which the other ranks find this one."""

import fcntl
import socket
import struct
from pathlib import Path

from ddpjob_ranks.launch.identity import Worker

SIOCGIFADDR = 0x8915  # linux/sockios.h
#: Addresses for documentation (RFC 5737, RFC 3849), which no network has: packets to them would take the default route.
ELSEWHERE = ("192.0.2.1", "2001:db8::1")


def interface_of(worker: Worker) -> str | None:
    """The network interface at which the other ranks are to find this one; None if there is none.

    Rank 0's host may have its own name at 127.0.1.1 (Debian's /etc/hosts), where other hosts would find themselves.
    """
    interface = interface_towards(worker.master_addr, worker.master_port)
    if interface == "lo" and worker.world_size > worker.local_world_size:
        found = (interface_towards(address, worker.master_port) for address in ELSEWHERE)
        return next(filter(None, found), interface)
    return interface


def interface_towards(host: str, port: int) -> str | None:
    """The network interface whose address packets to `host` leave from, by IPv4 or else by IPv6; None if there is none."""
    return _ipv4_interface_towards(host, port) or _ipv6_interface_towards(host, port)


def _ipv4_interface_towards(host: str, port: int) -> str | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting UDP sends nothing
            probe.connect((host, port))
            address = socket.inet_aton(probe.getsockname()[0])
            if address[0] == 127:  # all of 127/8 is the loopback's, which shows 127.0.0.1 only
                address = socket.inet_aton("127.0.0.1")
            return next((name for _, name in socket.if_nameindex() if _address_of(probe, name) == address), None)
    except OSError:
        return None


def _ipv6_interface_towards(host: str, port: int) -> str | None:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            source = socket.inet_pton(socket.AF_INET6, probe.getsockname()[0].partition("%")[0]).hex()
        addresses = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((line.split()[-1] for line in addresses if line.startswith(source)), None)


def _address_of(probe: socket.socket, interface: str) -> bytes | None:
    try:
        return fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()))[20:24]
    except OSError:  # it has no IPv4 address
        return None
