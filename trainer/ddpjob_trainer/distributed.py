"""The process group: devices, rendezvous, and what ranks tell each other outside of training.

Two groups: the default one moves gradients (nccl on GPUs, gloo on CPUs); the control group is always gloo, so that a
flag or a file can travel without a GPU synchronisation.
"""

import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ddpjob_trainer import contract
from ddpjob_trainer.config import ConfigError
from ddpjob_trainer.launch import Worker

#: Longest wait for any one collective, so that a lost rank is told by the ranks that wait for it. Without an operator
#: also for the other ranks to appear.
TIMEOUT = timedelta(minutes=10)
#: In a DDPJob ranks may start days apart, since each waits for a place of its own; the job's deadlines bound that.
GATHERING_TIMEOUT = timedelta(days=7)

SIOCGIFADDR = 0x8915  # linux/sockios.h
PEER_LOSS = re.compile(r"gloo/transport|Connection (closed|reset) by peer|Broken pipe|Timed out waiting|NCCL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """This rank among the others, once all have met."""

    rank: int
    world_size: int
    device: torch.device
    control: dist.ProcessGroup

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier(group=self.control)

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        """`values` summed over all ranks, in place."""
        dist.all_reduce(values)
        return values

    def all_gather(self, value: object) -> list[Any]:
        """The picklable `value` of every rank, by rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def broadcast_bytes(self, payload: bytes | None) -> bytes | None:
        """Rank 0's payload on every rank, over the CPU; None stays None."""
        size = torch.tensor([-1 if payload is None else len(payload)])
        dist.broadcast(size, src=0, group=self.control)
        if size.item() < 0:
            return None
        buffer = torch.empty(int(size.item()), dtype=torch.uint8)
        if self.rank == 0:
            assert payload is not None
            buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        dist.broadcast(buffer, src=0, group=self.control)
        return buffer.numpy().tobytes()

    def broadcast_buffers(self, module: torch.nn.Module) -> None:
        """Give every rank rank 0's buffers (BatchNorm statistics, which each rank gathers from its own samples)."""
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)


@contextmanager
def join(worker: Worker) -> Iterator[Gang]:
    """Meet the other ranks; on a clean way out, part from them.

    After an exception the group is left as it is: tearing it down would wait for ranks that may be gone.

    Raises:
        ConfigError: there is no GPU for this local rank.
    """
    device = _device(worker)
    _set_num_threads(worker)
    os.environ.update(worker.environment())
    if worker.world_size == 1:  # needs no port, so that any number can run side by side
        store = dist.HashStore()  # type: ignore[attr-defined]  # documented, but not in torch's own list of exports
        meeting: dict[str, Any] = {"store": store, "rank": 0, "world_size": 1}
    else:
        in_a_job = contract.DDPJOB_UID in os.environ
        store, rank, world_size = next(rendezvous("env://", timeout=GATHERING_TIMEOUT if in_a_job else TIMEOUT))
        store.set_timeout(TIMEOUT)
        meeting = {"store": store, "rank": rank, "world_size": world_size}
    # gloo would bind to what the host's own name resolves to, which is loopback or nothing on some hosts.
    if interface := interface_towards(worker.master_addr, worker.master_port):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if device.type == "cuda":
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device, **meeting)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT, **meeting)
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    assert isinstance(control, dist.ProcessGroup)  # all ranks are in it
    gang = Gang(rank=worker.rank, world_size=worker.world_size, device=device, control=control)
    yield gang
    gang.barrier()  # nobody leaves while another still reads from it
    dist.destroy_process_group()


def is_peer_loss(error: BaseException) -> bool:
    """Whether an exception only says that another rank, or the way to it, is gone."""
    if isinstance(error, dist.DistNetworkError):
        return "EADDRINUSE" not in str(error)
    if isinstance(error, (dist.DistBackendError, dist.DistStoreError)):
        return True
    return isinstance(error, RuntimeError) and PEER_LOSS.search(str(error)) is not None


def interface_towards(host: str, port: int) -> str | None:
    """The name of the IPv4 network interface whose address packets to `host` leave from; None if there is none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting UDP sends nothing
            probe.connect((host, port))
            address = socket.inet_aton(probe.getsockname()[0])
            if address[0] == 127:  # all of 127/8 is the loopback's, which shows 127.0.0.1 only
                address = socket.inet_aton("127.0.0.1")
            for _, name in socket.if_nameindex():
                if _address_of(probe, name) == address:
                    return name
    except OSError:
        return None
    return None


def _address_of(probe: socket.socket, interface: str) -> bytes | None:
    try:
        return fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()))[20:24]
    except OSError:  # it has no IPv4 address
        return None


def _device(worker: Worker) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if worker.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"rank {worker.rank}: local rank {worker.local_rank} has no GPU, this node shows"
            f" {torch.cuda.device_count()}; start one process per GPU (processesPerNode = gpusPerNode)"
        )
    device = torch.device("cuda", worker.local_rank)
    torch.cuda.set_device(device)
    return device


def _set_num_threads(worker: Worker) -> None:
    """Share this node's CPUs among its ranks; torch would give every rank all of them, limits of the pod ignored."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, available_cpus() // worker.local_world_size))


def available_cpus() -> int:
    """Whole CPUs that this process may use: its affinity, cut by the CPU limit of its cgroup (version 2, then 1)."""
    quota, period = "max", "100000"
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            pass
    cpus = len(os.sched_getaffinity(0))
    limited = quota.isdigit() and int(quota) > 0
    return max(1, min(cpus, int(quota) // int(period))) if limited else cpus
