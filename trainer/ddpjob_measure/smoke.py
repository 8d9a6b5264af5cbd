"""`python -m ddpjob_measure.smoke`: one rank of the smallest test of a backend on a device; rank 0 prints a line for each check.

Ranks meet by a file. All of them may use the same GPU, which gloo accepts, and NCCL where SHARED_GPU allows it.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d  # torch.distributed's own, which it exports untyped
from torch.nn.parallel import DistributedDataParallel

from ddpjob_ranks.distributed import NCCL_SETTINGS, nccl_in_effect
from ddpjob_ranks.watch.collectives import num_started

#: Has NCCL accept several ranks on one GPU, from the version on that knows it.
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
#: Has torch print how it runs NCCL.
VERBOSE = {"TORCH_CPP_LOG_LEVEL": "INFO"}
#: Begins the lines of the checks.
PREFIX = "smoke "
#: For the threads of torch and NCCL that could end the process after an abort or an error.
AFTERWARDS_SECONDS = 2.0


def settings(device: torch.device) -> object:
    """By which class NCCL runs, and which variables are not as ddpjob sets them."""
    assert dist.group.WORLD is not None
    return nccl_in_effect(dist.group.WORLD._get_backend(device), os.environ)


def all_reduce(device: torch.device) -> object:
    """The sum over ranks of their numbers, counted from 1."""
    values = torch.full((1 << 20,), float(dist.get_rank() + 1), device=device)
    dist.all_reduce(values)
    expected = sum(range(1, dist.get_world_size() + 1))
    assert bool((values == expected).all()), f"found {values[0]}, expected {expected}"
    return "equal"


def broadcast(device: torch.device) -> object:
    """Rank 0's bytes on every rank."""
    values = torch.full((1000,), dist.get_rank(), dtype=torch.uint8, device=device)
    dist.broadcast(values, src=0)
    assert not values.any()
    return "equal"


def ddp(device: torch.device) -> object:
    """Two steps of DDP; all ranks have the same weights."""
    torch.manual_seed(dist.get_rank())
    replica = DistributedDataParallel(nn.Linear(64, 64).to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        replica(torch.rand(8, 64, device=device)).square().sum().backward()
        optimizer.step()
    total = replica.module.weight.detach().double().sum()
    mean = total.clone()
    dist.all_reduce(mean)
    assert float(mean) == float(total) * dist.get_world_size(), "the replicas differ"
    return "replicas equal"


def flight_recorder(_: torch.device) -> object:
    """Collectives that the GPU has started, as the watchdog reads them from torch's flight recorder."""
    torch.cuda.synchronize()
    deadline = time.monotonic() + 10
    started = 0
    while not started and time.monotonic() < deadline:  # NCCL's watchdog thread looks at its work ten times a second
        started = num_started(c10d._dump_nccl_trace_json(includeCollectives=False))  # type: ignore[attr-defined] # not in its stubs
    assert started > 0, "no collective is known to have started"
    return f"{started} collectives started"


def abort(device: torch.device) -> object:
    """The watchdog's way out of a collective: this process continues after its communicator was aborted.

    With two ranks rank 0 is in a collective that rank 1 does not begin.
    """
    group = dist.group.WORLD
    assert group is not None
    hangs = dist.get_world_size() > 1
    if hangs and dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1, device=device), async_op=True)
    elif hangs:
        time.sleep(3 * AFTERWARDS_SECONDS)
    time.sleep(AFTERWARDS_SECONDS)
    group._get_backend(device).abort()
    torch.cuda.synchronize()
    time.sleep(AFTERWARDS_SECONDS)
    return f"the process continues after {'a collective that hung' if hangs else 'an idle communicator'}"


def own_fault(device: torch.device) -> object:
    """An error of this rank's GPU raises in the main thread, and no thread of torch ends the process before."""
    values = torch.zeros(10, device=device)
    dist.all_reduce(values)
    try:
        values[torch.tensor([1 << 20], device=device)].sum().item()  # an index that the kernel refuses
    except RuntimeError as error:
        time.sleep(AFTERWARDS_SECONDS)
        return f"raised in the main thread: {str(error).splitlines()[0]}"
    raise AssertionError("no error was raised")


CHECKS: Mapping[str, tuple[Callable[[torch.device], object], ...]] = {
    "gloo": (all_reduce, broadcast, ddp),
    "nccl": (settings, all_reduce, broadcast, ddp, flight_recorder, abort),  # the last one leaves no group behind
    "fault": (all_reduce, own_fault),  # this one neither
}


def main() -> int:
    """Join, check, print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddpjob_measure.smoke", description=__doc__)
    parser.add_argument("--checks", required=True, choices=CHECKS, help="fault: of NCCL too, in a process of its own")
    parser.add_argument("--device", required=True, type=torch.device)
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--world-size", required=True, type=int)
    parser.add_argument("--file", required=True)
    given = parser.parse_args()
    backend = "gloo" if given.checks == "gloo" else "nccl"
    if given.device.type == "cuda":
        torch.cuda.set_device(given.device)
    for name, value in NCCL_SETTINGS.items():
        os.environ.setdefault(name, value)
    dist.init_process_group(
        backend,
        init_method=f"file://{given.file}",
        rank=given.rank,
        world_size=given.world_size,
        device_id=given.device if backend == "nccl" else None,
    )
    for check in CHECKS[given.checks]:
        result = check(given.device)
        if given.rank == 0:
            print(f"{PREFIX}{check.__name__} {result}", flush=True)
    os._exit(0)  # after an abort there is nothing to tear down


if __name__ == "__main__":
    sys.exit(main())
