"""A data loader whose worker process fails; argv[1] says how."""

import os
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Samples of which one cannot be read."""

    def __len__(self) -> int:
        """The number of samples."""
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        """Fail for a sample in the middle."""
        if index == 5:
            time.sleep(1)  # until the main process has received the other samples
        if index == 5 and sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 5 and sys.argv[1] == "bus":
            os.kill(os.getpid(), signal.SIGBUS)
        if index == 5:
            raise ValueError("image 5 is truncated")
        return torch.zeros(1)


for _ in DataLoader(Samples(), num_workers=2):
    pass
