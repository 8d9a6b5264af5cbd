"""At which network interface other ranks find this one."""

import errno
import fcntl
import socket
from pathlib import Path

import pytest

from ddpjob_ranks.launch import network_interface
from ddpjob_ranks.launch.network_interface import interface_towards
from support.workers import worker


def one_of(world_size, **changes):
    return worker(**{"world_size": world_size, "local_world_size": 2, "master_addr": "127.0.1.1", **changes})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_a_loopback_master_is_reached_through_loopback(host):
    assert interface_towards(host, 29500) == "lo"


def test_another_host_is_reached_through_the_interface_that_has_the_source_address(monkeypatch):
    addresses = {"lo": "127.0.0.1", "ib0": None, "eth0": "10.0.0.5", "eth1": "198.51.100.7"}

    def address_of(_, __, name):
        if not (address := addresses[name.rstrip(b"\0").decode()]):
            raise OSError(errno.EADDRNOTAVAIL, "no address")
        return bytes(20) + socket.inet_aton(address) + bytes(8)

    class Probe(socket.socket):
        def connect(self, address):
            assert address == ("192.0.2.1", 29500)

        def getsockname(self):
            return (addresses["eth1"], 40000)

    monkeypatch.setattr(socket, "socket", Probe)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses, 1)))
    monkeypatch.setattr(fcntl, "ioctl", address_of)
    assert interface_towards("192.0.2.1", 29500) == "eth1"


def test_a_host_without_ipv4_is_reached_through_the_interface_that_has_the_ipv6_source_address(monkeypatch):
    class Probe:
        def __init__(self, family, _):
            self.family = family

        def connect(self, _):
            if self.family == socket.AF_INET:
                raise socket.gaierror(-9, "Address family for hostname not supported")

        def getsockname(self):
            return ("fd00:77::5", 40000, 0, 0)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    lines = (
        "00000000000000000000000000000001 01 80 10 80       lo\nfd000077000000000000000000000005 03 40 00 82     eth1\n"
    )
    monkeypatch.setattr(socket, "socket", Probe)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: lines)
    assert interface_towards("fd00:77::9", 29500) == "eth1"


def test_an_unknown_host_has_no_interface():
    assert interface_towards("no-such-host.invalid", 29500) is None


@pytest.mark.parametrize("by", network_interface.ELSEWHERE)
@pytest.mark.parametrize(
    ("world_size", "to_elsewhere", "chosen"), [(2, "eth0", "lo"), (4, "eth0", "eth0"), (4, None, "lo")]
)
def test_rank_0_shows_other_hosts_no_loopback(monkeypatch, world_size, to_elsewhere, chosen, by):
    routes = {"127.0.1.1": "lo", "192.0.2.1": None, "2001:db8::1": None, by: to_elsewhere}
    monkeypatch.setattr(network_interface, "interface_towards", lambda host, _: routes[host])
    assert network_interface.interface_of(one_of(world_size)) == chosen
