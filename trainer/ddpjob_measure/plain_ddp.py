"""The baseline: DDP as tutorials write it, on the same network, images and batch as the recipe it is compared with.

torchvision's transforms on PIL images in DataLoader workers, pinned memory, DistributedSampler, float32, SGD, the loss
read after each step. Images wait decoded in memory, as those of torchvision's CIFAR10 do. Nothing here is tuned, and
nothing slowed down. With `tuned` it has the three changes that PyTorch's tuning guide names first: autocast to bfloat16,
channels_last and torch.compile.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from ddpjob_ranks.distributed import Gang

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images
Sample = tuple[torch.Tensor, int]


class DecodedImages(Dataset[Sample]):
    """The images of a folder with one folder for each class, decoded once; each access gives a new augmented tensor."""

    def __init__(self, folder: Path) -> None:
        self._samples = [(np.array(image), label) for image, label in ImageFolder(folder)]
        size = self._samples[0][0].shape[0]
        self._transform = transforms.Compose(
            [
                transforms.RandomCrop(size, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        pixels_HWC, label = self._samples[index]  # noqa: N806 - tensors carry their shape in their name
        return self._transform(Image.fromarray(pixels_HWC)), label


class PlainTraining:
    """One rank of the plain script. `take_step` trains one step on the next batch, over as many epochs as it takes."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        gang: Gang,
        *,
        global_batch_size: int,
        num_workers: int,
        tuned: bool = False,
    ) -> None:
        model = model.to(gang.device)
        if tuned:
            model = model.to(memory_format=torch.channels_last)
            model.compile()
        self.replica = DistributedDataParallel(model, device_ids=[gang.device] if gang.device.type == "cuda" else None)
        self._tuned = tuned
        self.optimizer = torch.optim.SGD(self.replica.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        self._criterion = nn.CrossEntropyLoss()
        self._device = gang.device
        self._sampler: DistributedSampler[Any] = DistributedSampler(dataset, gang.world_size, gang.rank)
        self._loader = DataLoader(
            dataset,
            batch_size=max(1, global_batch_size // gang.world_size),
            sampler=self._sampler,
            num_workers=num_workers,
            pin_memory=gang.device.type == "cuda",
            persistent_workers=num_workers > 0,
            drop_last=True,
        )
        self._batches = self._endless()
        self.running_loss = 0.0

    def take_step(self) -> None:
        """Load, forward, backward, update, read the loss."""
        images, labels = next(self._batches)
        images, labels = images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)
        if self._tuned:
            images = images.contiguous(memory_format=torch.channels_last)
        self.optimizer.zero_grad()
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._tuned):
            loss = self._criterion(self.replica(images), labels)
        loss.backward()
        self.optimizer.step()
        self.running_loss += loss.item()

    def _endless(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            yield from self._loader
            epoch += 1
