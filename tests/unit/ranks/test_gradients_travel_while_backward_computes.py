import pytest
import torch
import torch.distributed as dist

from ddpjob_ranks import distributed
from ddpjob_ranks.limits import Limits
from workers import worker


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells the backend by its complaint that there is no GPU")
def test_nccl_is_the_backend_that_does_not_block_the_computation(monkeypatch):
    """With the newer one, torch's default, backward would wait for each bucket of gradients."""
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", "")
    monkeypatch.delenv("TORCH_DIST_USE_NCCL2")  # and what `join` sets goes with this test
    init = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **given: init(*args, **{**given, "device_id": None}))
    met = distributed.Rendezvous(
        worker=worker(world_size=1),
        limits=Limits(first_step_seconds=9, step_seconds=9),
        device=torch.device("cuda", 0),
        store=dist.HashStore(),
    )
    with pytest.raises(ValueError, match="ProcessGroupNCCL is only supported with GPUs"), distributed.join(met):
        pass
