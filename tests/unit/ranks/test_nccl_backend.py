import os
import subprocess
import sys

PROGRAM = """
import torch
import torch.distributed as dist
from ddpjob_ranks import distributed
from ddpjob_ranks.launch.identity import resolve
from ddpjob_ranks.limits import Limits

init = dist.init_process_group
dist.init_process_group = lambda *args, **given: init(*args, **{**given, "device_id": None})
limits = Limits(first_step_seconds=9, step_seconds=9)
with distributed.join(resolve({}), limits, torch.device("cuda", 0), dist.HashStore()):
    pass
"""


def test_nccl_is_the_backend_that_does_not_block_the_computation():
    """With the newer one, torch's default, backward would wait for each bucket of gradients.

    Which one it is, torch says in its complaint that there is no GPU; so those of the machine are hidden.
    """
    environ = {name: value for name, value in os.environ.items() if name != "TORCH_DIST_USE_NCCL2"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env={**environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120, check=False
    )
    assert "ValueError: ProcessGroupNCCL is only supported with GPUs" in done.stderr
