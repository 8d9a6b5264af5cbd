"""Sessions of one rank, in the process of the test, with a folder for checkpoints."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddpjob_ranks import contract
from ddpjob_session import ending, run

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE")


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Whether the session is asked to stop: `received`. It takes no signal of pytest's, and ends no process."""
    asked = SimpleNamespace(received=False, ignore=lambda: None)
    monkeypatch.setattr(run, "StopRequest", lambda: asked)

    monkeypatch.setattr(ending, "leave", sys.exit)
    for name in VARIABLES:
        os.environ.pop(name, None)
    os.environ[contract.DDPJOB_CHECKPOINT_DIR] = str(tmp_path)
    yield asked
    if torch.distributed.is_initialized():  # after a failure
        torch.distributed.destroy_process_group()


@pytest.fixture
def saved(tmp_path: Path):
    """What the checkpoints hold, by step."""

    def read() -> dict[int, dict[str, Any]]:
        found = [torch.load(path, weights_only=True) for path in tmp_path.glob("step-*.pt")]
        return {content["step"]: content for content in sorted(found, key=lambda content: content["step"])}

    return read
