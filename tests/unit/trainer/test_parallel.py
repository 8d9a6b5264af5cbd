"""DDP under each release of torch that is supported."""

from typing import Any

import pytest
import torch
from torch import nn

from ddpjob_session import replica
from ddpjob_trainer import parallel
from ddpjob_trainer.config import parse_config
from support.fakes import fake


def of_torch_2_11(_module, *, broadcast_buffers=True, **_):
    return broadcast_buffers


def of_torch_2_15(_module, *, forward_sync_buffers=None, **_):
    return forward_sync_buffers


@pytest.mark.parametrize("constructor", [of_torch_2_11, of_torch_2_15])
def test_buffers_are_broadcast_once_and_not_in_each_forward_pass(monkeypatch, constructor):
    for module in (parallel, replica):  # the one that reads its keywords and the one that makes it
        monkeypatch.setattr(module, "DistributedDataParallel", constructor)
    model, broadcast = nn.BatchNorm1d(2), list[Any]()
    gang = fake(device=torch.device("cpu"), broadcast_buffers=broadcast.append)
    in_each_pass = parallel.replicate(model, parse_config({"recipe": "digits"}), gang)
    assert not in_each_pass
    assert broadcast == [model]
