"""A lost peer, and afterwards the noise of a shutdown: an object that cannot be deleted, an atexit function that fails."""

import atexit

import torch
import torch.distributed as dist


class Loader:
    """Like an iterator of a data loader whose workers are gone."""

    def __del__(self) -> None:
        """Fail as torch's iterator does in a forked process."""
        raise AssertionError("can only test a child process")


def report() -> None:
    """Fail as a logger does whose server is gone."""
    raise RuntimeError("the run has been closed")


dist.init_process_group("gloo")
if dist.get_rank() == dist.get_world_size() - 1:
    raise SystemExit(0)
atexit.register(report)
loader = Loader()
dist.all_reduce(torch.ones(1))
