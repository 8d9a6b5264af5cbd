import socket

import pytest
import torch.distributed as dist

from ddpjob_ranks import distributed
from ddpjob_ranks.distributed import interface_towards, is_out_of_memory, is_peer_loss
from support.workers import worker


def one_of(world_size, **changes):
    return worker(**{"world_size": world_size, "local_world_size": 2, "master_addr": "127.0.1.1", **changes})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_a_loopback_master_is_reached_through_loopback(host):
    assert interface_towards(host, 29500) == "lo"


def test_another_host_is_reached_through_the_interface_that_has_the_source_address(monkeypatch):
    addresses = {"lo": "127.0.0.1", "ib0": None, "eth0": "10.0.0.5", "eth1": "198.51.100.7"}

    class Probe(socket.socket):
        def connect(self, address):
            assert address == ("192.0.2.1", 29500)

        def getsockname(self):
            return (addresses["eth1"], 40000)

    monkeypatch.setattr(socket, "socket", Probe)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses, 1)))
    monkeypatch.setattr(
        distributed, "_address_of", lambda _, name: addresses[name] and socket.inet_aton(addresses[name])
    )
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
    monkeypatch.setattr(distributed.Path, "read_text", lambda *_, **__: lines)
    assert interface_towards("fd00:77::9", 29500) == "eth1"


def test_an_unknown_host_has_no_interface():
    assert interface_towards("no-such-host.invalid", 29500) is None


@pytest.mark.parametrize("by", distributed.ELSEWHERE)
@pytest.mark.parametrize(
    ("world_size", "to_elsewhere", "chosen"), [(2, "eth0", "lo"), (4, "eth0", "eth0"), (4, None, "lo")]
)
def test_rank_0_shows_other_hosts_no_loopback(monkeypatch, world_size, to_elsewhere, chosen, by):
    routes = {"127.0.1.1": "lo", "192.0.2.1": None, "2001:db8::1": None, by: to_elsewhere}
    monkeypatch.setattr(distributed, "interface_towards", lambda host, _: routes[host])
    assert distributed._interface(one_of(world_size)) == chosen


@pytest.mark.parametrize(
    ("error", "is_echo"),
    [
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset"), True),
        (RuntimeError("Connection closed by peer [10.0.0.7]:4242"), True),
        (dist.DistBackendError("NCCL communicator was aborted"), True),
        (dist.DistBackendError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"), False),
        (dist.DistBackendError("NCCL error: unhandled cuda error\nCuda failure 700 'an illegal memory access'"), False),
        (RuntimeError("ProcessGroupNCCL requires CUDA tensors"), False),
        (dist.DistBackendError("NCCL error: ncclSystemError\nError while creating shared memory segment"), False),
        (dist.DistBackendError("NCCL error: ncclInvalidUsage\nDuplicate GPU detected"), False),
        (dist.DistNetworkError("The client socket has timed out after 600000ms while trying to connect"), True),
        (dist.DistNetworkError("The server socket has failed to listen: EADDRINUSE"), False),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), False),
        (ValueError("Connection closed by peer"), False),
        (RuntimeError("Caught OSError in DataLoader worker process 0.\nOSError: Connection reset by peer"), False),
    ],
)
def test_only_the_consequence_of_another_ranks_end_is_a_peer_loss(error, is_echo):
    assert is_peer_loss(error) is is_echo


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_memory_that_ran_out_is_known_by_its_message(message):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_peer_loss(RuntimeError(message))
