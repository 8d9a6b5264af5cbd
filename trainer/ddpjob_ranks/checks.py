"""What ranks check once the process group exists: sums, clocks, and facts that must be the same on all ranks."""

import os
import time
from collections.abc import Mapping

import torch

from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.launch import preflight
from ddpjob_ranks.watch.diagnosis import CLOCK_SPREAD_SECONDS


def check_same(gang: Gang, same: Mapping[str, str]) -> None:
    """Check that all ranks found the same.

    Raises:
        preflight.RefusedError: they did not.
    """
    mine = {"rank": gang.rank, "location": preflight.location(os.environ), "same": dict(same)}
    if text := preflight.disagreements_of([preflight.Facts(**facts) for facts in gang.all_gather(mine)]):
        raise preflight.RefusedError(text)


def check_group(gang: Gang) -> None:
    """Check that sums over the ranks are right, and warn if their clocks differ.

    Raises:
        RuntimeError: a sum over all ranks is wrong; the text names the ranks whose part is missing.
    """
    parts = torch.zeros(gang.world_size, device=gang.device)
    parts[gang.rank] = 1.0
    wrong = (gang.sum_(parts) != 1.0).nonzero().flatten().tolist()
    if wrong:
        raise RuntimeError(
            f"preflight: rank {gang.rank} ({preflight.location(os.environ)}): an all-reduce gave a wrong sum for the parts of ranks"
            f" {wrong}: {parts.tolist()}; expected 1 for each. Check the network and the GPUs of these ranks (NCCL_DEBUG=INFO shows more)."
        )
    gang.barrier()
    clocks = gang.all_gather((time.time(), preflight.location(os.environ)))
    (first, where_first), (last, where_last) = min(clocks), max(clocks)
    if gang.rank == 0 and last - first > CLOCK_SPREAD_SECONDS:
        print(
            f"preflight: the clock of {where_last} is {last - first:.1f} s ahead of the clock of {where_first}; synchronize them with NTP",
            flush=True,
        )
