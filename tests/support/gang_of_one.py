"""A process group of this process alone."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from ddpjob_ranks.distributed import Gang


@pytest.fixture
def gang() -> Iterator[Gang]:
    """Of one rank, over gloo. A fixture of the `conftest.py` of each folder whose tests need it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    group = dist.group.WORLD
    assert group is not None
    yield Gang(rank=0, world_size=1, device=torch.device("cpu"), control=group)
    dist.destroy_process_group()
