"""The devices on which tests of the trainer run: CPUs, and the GPU of a machine that has one (`make gpu`)."""

import pytest
import torch

DEVICES = [torch.device("cpu"), *([torch.device("cuda", 0)] if torch.cuda.is_available() else [])]
#: A test with a parameter `device`.
on_each_device = pytest.mark.parametrize("device", DEVICES, ids=[f"on_{device.type}" for device in DEVICES])
