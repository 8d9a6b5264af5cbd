import os
import subprocess
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

from ddpjob_ranks import distributed
from ddpjob_ranks.launch.identity import resolve
from ddpjob_ranks.limits import Limits

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


def test_torchs_own_watchdog_neither_sleeps_nor_ends_ranks_and_the_group_for_control_needs_no_gpu(monkeypatch):
    """Its signal to dump would stay in the store of ranks that start again in place, and end them minutes later."""
    set_at_start = {}

    def init_process_group(*_: object, **__: object) -> None:
        set_at_start.update({name: os.environ[name] for name in distributed.NCCL_SETTINGS})

    control = SimpleNamespace(bound_device_id=torch.device("cuda", 0))
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(dist, "new_group", lambda **_: control)
    monkeypatch.setattr(dist, "ProcessGroup", SimpleNamespace)
    monkeypatch.setattr(distributed, "leave", lambda *_: None)
    for name in distributed.NCCL_SETTINGS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    limits = Limits(first_step_seconds=9, step_seconds=9)
    with distributed.join(resolve({}), limits, torch.device("cuda", 0), dist.HashStore()):
        assert control.bound_device_id is None
    for name in ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_ENABLE_MONITORING"):
        assert set_at_start[name] == "0"
