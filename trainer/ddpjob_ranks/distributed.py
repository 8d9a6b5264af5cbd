"""The process group: devices, rendezvous, and what ranks exchange outside of training.

Two groups: the default one moves gradients (nccl on GPUs, gloo on CPUs); the control group is always gloo, so that a
flag or a file can travel without a GPU synchronisation.
"""

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store  # torch.distributed's own, which it exports untyped

from ddpjob_ranks import contract, device_memory, generation
from ddpjob_ranks.cpus import cpus_of_this_rank
from ddpjob_ranks.device_memory import is_out_of_memory
from ddpjob_ranks.errors import ConfigError, ForeignMessageError, PeersMissingError
from ddpjob_ranks.launch import preflight
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.launch.network_interface import interface_of
from ddpjob_ranks.launch.rendezvous import open_store
from ddpjob_ranks.limits import Limits

#: How much is broadcast at once.
PIECE_BYTES = 64 * 2**20
#: How torch runs NCCL, unless the environment says otherwise. `python -m ddpjob_measure gpu` tests them on a GPU.
NCCL_SETTINGS = {
    # The backend that torch makes of "nccl" by itself since 2.15 has the computation wait for each bucket of gradients
    # (nccl2/WorkNCCL.cpp, getFuture), so that no all-reduce would overlap with backward.
    "TORCH_DIST_USE_NCCL2": "0",
    # CleanUpOnly (ProcessGroupNCCL.hpp): after the loss of a rank torch aborts the communicator, and this process can
    # report which rank that was. By default torch ends the process by SIGABRT.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    # An error of this rank's own GPU reaches torch's watchdog thread too, which would end the process by SIGABRT
    # (ProcessGroupNCCL.cpp, Watchdog::run), possibly before the main thread has written its termination message.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # After an error torch's watchdog would announce a dump of its flight recorder, sleep for 60 s, and only then abort
    # (ProcessGroupNCCL.cpp, Watchdog::runLoop). It announces by a key of the store that ranks keep when they start again in
    # place, by which a monitor of the next process would end it by SIGABRT, eight minutes later; the monitor would also miss
    # a watchdog thread that an error of the GPU has ended. Our own watchdog dumps the recorder and ends what hangs.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # An event at the start of each collective, by which the watchdog knows which GPU is late.
    "TORCH_NCCL_ENABLE_TIMING": "1",
}
PEER_LOSS = re.compile(
    r"gloo/transport|Connection (closed|reset) by peer|Broken pipe|Timed out waiting|monitoredBarrier|NCCL"
)

#: In torch's message for an exception of a data set, which may speak of connections to a data store.
IN_DATA_WORKER = "in DataLoader worker process"

#: What NCCL reports about this rank's own GPU, tensors, shared memory or call.
OWN_FAULT = re.compile(
    r"Cuda failure|requires CUDA tensors|shared memory segment|No space left on device|ncclInvalid(Usage|Argument)"
    r"|Duplicate GPU detected"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """This rank and its process groups, which connect it to all other ranks."""

    rank: int
    world_size: int
    device: torch.device
    control: dist.ProcessGroup

    @property
    def is_destroyed(self) -> bool:
        """Whether a script has called `dist.destroy_process_group`, as the last line of many does. Nothing is exchanged any more."""
        return not dist.is_initialized()

    def barrier(self, timeout: timedelta | None = None) -> None:
        """Wait until every rank is here (half an hour by default); an error names those that are not."""
        dist.monitored_barrier(group=self.control, timeout=timeout, wait_all_ranks=True)

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        """`values` summed over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def begin_max(self, values: torch.Tensor) -> dist.Work:
        """Begin to replace `values` (on the CPU) by the largest of all ranks, in place; `wait` for the result."""
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self.control, async_op=True)
        assert work is not None
        return work

    def begin_barrier(self) -> dist.Work:
        """Begin to wait until every rank is here."""
        work = dist.barrier(group=self.control, async_op=True)
        assert work is not None
        return work

    def all_gather(self, value: object) -> list[Any]:
        """The `value` of every rank, by rank: numbers, strings, bytes, tensors and containers of them.

        torch's all_gather_object unpickles what other ranks send, so that whoever reaches a rank could run code in it.

        Raises:
            ForeignMessageError: a rank has sent anything else.
        """
        message = io.BytesIO()
        torch.save(value, message)
        mine = torch.frombuffer(message.getbuffer(), dtype=torch.uint8)
        # A script may have chosen another default device.
        num_ranks = dist.get_world_size(self.control)
        sizes = [torch.empty(1, dtype=torch.int64, device="cpu") for _ in range(num_ranks)]
        dist.all_gather(sizes, torch.tensor([len(mine)], device="cpu"), group=self.control)
        messages = [torch.empty(max(map(int, sizes)), dtype=torch.uint8, device="cpu") for _ in sizes]
        dist.all_gather(messages, torch.cat([mine, mine.new_zeros(len(messages[0]) - len(mine))]), group=self.control)
        return [_loaded(sent[: int(size)], rank) for rank, (sent, size) in enumerate(zip(messages, sizes, strict=True))]

    def broadcast_bytes(
        self, payload: bytearray | None, moved: Callable[[], None] = lambda: None, *, source: int = 0
    ) -> memoryview | None:
        """One rank's payload on every rank, over the CPU; None stays None. `moved` is called after each piece.

        On that rank the result is the memory of the payload.
        """
        size = torch.tensor([-1 if payload is None else len(payload)], device="cpu")
        dist.broadcast(size, src=source, group=self.control)
        if size.item() < 0:
            return None
        buffer = (
            torch.frombuffer(payload, dtype=torch.uint8)
            if payload
            else torch.empty(int(size.item()), dtype=torch.uint8, device="cpu")
        )
        for piece in torch.split(buffer, PIECE_BYTES):
            self.broadcast(piece, source)
            moved()
        return buffer.numpy().data

    def broadcast(self, values: torch.Tensor, source: int) -> None:
        """Replace `values` (on the CPU) by those of one rank, in place."""
        dist.broadcast(values, src=source, group=self.control)

    def broadcast_buffers(self, module: torch.nn.Module) -> None:
        """Give every rank rank 0's buffers (BatchNorm statistics, which each rank gathers from its own samples).

        All of them in one message: a ResNet-50 has 159, mostly of a few hundred bytes.
        """
        buffers = sorted(module.buffers(), key=lambda buffer: -buffer.element_size())  # so that all pieces are aligned
        if not buffers or self.world_size == 1:
            return
        packed = torch.cat([as_bytes(buffer) for buffer in buffers])
        dist.broadcast(packed, src=0)
        pieces = torch.split(packed, [buffer.nbytes for buffer in buffers])
        typed = [piece.view(buffer.dtype).view_as(buffer) for buffer, piece in zip(buffers, pieces, strict=True)]
        torch._foreach_copy_(buffers, typed)


def _loaded(message: torch.Tensor, rank: int) -> Any:
    try:
        return torch.load(io.BytesIO(message.numpy().data), map_location="cpu", weights_only=True)
    except Exception as error:  # its own text advises to load it without weights_only
        raise ForeignMessageError(rank) from error


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The values in their logical order as a flat tensor of bytes, whatever the strides; a copy only where it must be."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def rendezvous(worker: Worker, limits: Limits, same: Mapping[str, str]) -> tuple[torch.device, Store]:
    """Wait for the other ranks and compare facts with them: `same` must be the same on all ranks, by name.

    Returns the device of this rank, and the store that all ranks share.

    Raises:
        ConfigError: there is no GPU for this local rank, or `open_store` or `preflight` refuse.
        RuntimeError: CUDA does not show the GPUs that the pod was given.
        PeersMissingError: other ranks did not start in time.
    """
    device = device_of(worker)
    device_memory.use(device, generation.current(os.environ))
    os.environ.update(worker.environment())
    set_num_threads(cpus_of_this_rank(os.environ))
    store = meet(worker, same, device)
    store.set_timeout(limits.collectives)
    return device, store


def meet(worker: Worker, same: Mapping[str, str], device: torch.device) -> Store:
    """The store in which all ranks have met. If it is lost with the pod that serves it, they meet in that of the next pod.

    If the connection alone was lost, the same store is found again.
    """
    process = uuid4().hex
    while True:
        try:
            store = open_store(worker)
            preflight.check(store, worker, same, device, process)
        except dist.DistError:
            is_alone = generation.current(os.environ) is None or worker.node_rank == 0
            if is_alone or contract.DDPJOB_REPLACEMENT_SECONDS not in os.environ:
                raise
            continue
        return store


@contextmanager
def join(
    worker: Worker, limits: Limits, device: torch.device, store: Store, groups: ModuleType = dist
) -> Iterator[Gang]:
    """Connect to the other ranks. At the end of the block, leave the group together, unless it raised an exception.

    `groups` creates the process groups, as `torch.distributed` does.
    After an exception the group is not torn down, because that would wait for ranks that may have ended.
    """
    # gloo would bind to what the host's own name resolves to, which is loopback or nothing on some hosts.
    if interface := interface_of(worker):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    for name, value in NCCL_SETTINGS.items():
        os.environ.setdefault(name, value)
    groups.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=worker.rank,
        world_size=worker.world_size,
        timeout=limits.collectives,
        device_id=device if device.type == "cuda" else None,
    )
    control = groups.new_group(backend="gloo", timeout=limits.collectives)
    assert isinstance(control, dist.ProcessGroup)  # all ranks are in it
    # new_group copies the GPU of the group above to it, and a barrier would allocate a tensor there.
    control.bound_device_id = None
    if device.type == "cuda" and worker.rank == 0:
        print(nccl_in_effect(groups.group.WORLD._get_backend(device), os.environ), flush=True)
    gang = Gang(rank=worker.rank, world_size=worker.world_size, device=device, control=control)
    yield gang
    leave(gang, limits.collectives)


def nccl_in_effect(backend: object, environ: Mapping[str, str]) -> str:
    """How torch runs NCCL: the class of the group's backend, and the variables that differ from NCCL_SETTINGS.

    torch reads these variables when it creates the group, and ignores those that it does not know. What the class does not show is
    tested by `python -m ddpjob_measure gpu`.
    """
    kind = type(backend).__name__
    text = f"NCCL by {kind}, set by {len(NCCL_SETTINGS)} variables"
    others = [f"{name}={environ.get(name)}" for name, value in NCCL_SETTINGS.items() if environ.get(name) != value]
    if others:
        text += f"; not as ddpjob sets them: {', '.join(others)}"
    if kind != "ProcessGroupNCCL" and environ.get("TORCH_DIST_USE_NCCL2") == "0":
        text += (
            f"; TORCH_DIST_USE_NCCL2=0 has no effect in torch {torch.__version__}: ProcessGroupNCCL is expected, and without it"
            " all-reduces may not overlap with backward"
        )
    return text


def leave(gang: Gang, timeout: timedelta) -> None:
    """Leave the group together: no rank leaves while another one still reads from it. A script may have destroyed it."""
    if gang.is_destroyed:
        return
    gang.barrier(timeout)
    dist.destroy_process_group()


def is_peer_loss(error: BaseException) -> bool:
    """Whether an exception only says that another rank, or the way to it, is gone."""
    if isinstance(error, PeersMissingError):
        return True
    if is_out_of_memory(error) or OWN_FAULT.search(str(error)) or IN_DATA_WORKER in str(error):
        return False
    if isinstance(error, dist.DistNetworkError):
        return "EADDRINUSE" not in str(error)
    if isinstance(error, (dist.DistBackendError, dist.DistStoreError)):
        return True
    return isinstance(error, RuntimeError) and PEER_LOSS.search(str(error)) is not None


def device_of(worker: Worker, cuda: ModuleType = torch.cuda) -> torch.device:
    """The device of this rank.

    Raises:
        ConfigError: there is no GPU for this local rank.
        RuntimeError: CUDA does not show the GPUs that the pod was given.
    """
    num_gpus = cuda.device_count() if cuda.is_available() else 0
    given = int(os.environ.get(contract.DDPJOB_GPUS_PER_NODE) or "0")
    # One of several slices or shares of a GPU (MIG, time slicing) may be all that CUDA shows, and one process needs one.
    if num_gpus < min(given, worker.local_world_size) and "CUDA_VISIBLE_DEVICES" not in os.environ:
        raise RuntimeError(
            f"{preflight.location(os.environ)} was given {given} GPUs for {worker.local_world_size} processes, and torch"
            f" {torch.__version__} (CUDA {torch.version.cuda}) sees {num_gpus}: a GPU of that node may be broken, or its"
            " driver may be too old for this torch; run nvidia-smi on that node"
        )
    if not num_gpus:
        return torch.device("cpu")
    # Where each process is shown a GPU of its own (srun --gpus-per-task=1), that is its first. `preflight` tells it from
    # one GPU for all.
    index = 0 if num_gpus == 1 else worker.local_rank
    if index >= num_gpus:
        raise ConfigError(
            f"rank {worker.rank}: local rank {worker.local_rank} has no GPU, because CUDA shows"
            f" {num_gpus} on this node; start one process per GPU (processesPerNode = gpusPerNode)"
        )
    return torch.device("cuda", index)


def set_num_threads(share: int) -> None:
    """Have torch use so many CPUs; it would give every rank all CPUs of the node, limits of the pod ignored."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(share)
    num_compilers = int(os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(share)))  # processes
    # A forked rank has the module of its parent, which has read the variable already.
    if config := sys.modules.get("torch._inductor.config"):
        config.compile_threads = num_compilers  # type: ignore[attr-defined] # a module of settings
