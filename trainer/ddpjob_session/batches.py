"""The batches of a DataLoader from a step on, found by their indices: nothing that is done is read again.

What an epoch holds is a function of the seed, the epoch and the rank. What a data set draws from the generators of random
numbers for a batch, as augmentation does, is one of the seed, the epoch, the rank and the batch. So the batch of a step is
the same in each attempt, with any number of workers, persistent or not.
"""

import copy
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data

#: Their number of samples is the same in each epoch.
EVEN_SAMPLERS = (data.DistributedSampler, data.RandomSampler, data.SequentialSampler, data.WeightedRandomSampler)


class Seeded(NamedTuple):
    """What a sampler has chosen, and the seed to read it with. It travels to workers."""

    seed: int
    chosen: Any


class SeededData(data.Dataset[Any]):
    """A data set whose reads are seeded; otherwise it is the one that it wraps."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Seeded) -> Any:
        with seeded(index.seed):
            return self._inner[index.chosen]

    def __getitems__(self, indices: Seeded) -> Any:
        """As DataLoader reads a whole batch."""
        with seeded(indices.seed):
            if hasattr(self._inner, "__getitems__"):
                return self._inner.__getitems__(indices.chosen)
            return [self._inner[index] for index in indices.chosen]


class _Rest:
    """In the place of the loader's sampler: what is left of an epoch."""

    def __init__(self) -> None:
        self.chosen: Sequence[Seeded] = ()

    def __iter__(self) -> Iterator[Seeded]:
        return iter(self.chosen)

    def __len__(self) -> int:
        return len(self.chosen)


class Epochs:
    """The batches of all epochs of a loader, in order.

    Args:
        loader: Of a map-style data set.
        seed: Of its order and of what its data set draws. A sampler with `set_epoch` has a seed of its own for the order.
        rank: Of this process.

    Raises:
        ValueError: there are no indices to find a batch by.
    """

    def __init__(self, loader: data.DataLoader[Any], *, seed: int, rank: int) -> None:
        if isinstance(loader.dataset, data.IterableDataset) or hasattr(loader, "load_state_dict"):
            what = "loader has a state" if hasattr(loader, "load_state_dict") else "data set has no indices"
            raise ValueError(
                f"Session.batches: the {what}, so it has to know its own position; iterate over it, and track what has"
                " state_dict and load_state_dict, the loader or the data set, for each rank:"
                ' session.track(..., per_rank={"data": ...})'
            )
        self._loader, self._seed, self._rank = loader, seed, rank
        sampler, batch_sampler = loader.sampler, loader.batch_sampler
        self._source: Any = sampler if batch_sampler is None else batch_sampler
        self._is_even = type(sampler) in EVEN_SAMPLERS and type(batch_sampler) in (type(None), data.BatchSampler)
        self._parts: Any = {id(part): part for part in (loader.dataset, sampler, batch_sampler)}.values()
        self._rest = _Rest()
        self._mine: Any = copy.copy(loader)
        replaced = {"sampler" if batch_sampler is None else "batch_sampler": self._rest}
        for name, value in {**replaced, "dataset": SeededData(loader.dataset), "_iterator": None}.items():
            object.__setattr__(self._mine, name, value)  # which DataLoader refuses

    @property
    def shape(self) -> tuple[int, int] | None:
        """Samples of this rank in a whole batch, and batches in an epoch, where all epochs have as many."""
        return (self._loader.batch_size or 1, len(self._source)) if self._is_even else None

    def from_batch(self, number: int, moved: Callable[[], None]) -> Iterator[Any]:
        """The batches from one on, counted from 0 over all epochs. `moved` is called for each epoch that is passed over."""
        epoch = 0
        if self._is_even and len(self._source):
            epoch, number = divmod(number, len(self._source))
        while True:
            chosen = self._chosen(epoch)
            if not chosen:
                raise ValueError(f"Session.batches: epoch {epoch} of the loader has no batch")
            if number < len(chosen):
                self._rest.chosen = chosen[number:]
                self._mine.generator = torch.Generator().manual_seed(self._seed_of(epoch))
                yield from self._mine
            number = max(0, number - len(chosen))
            epoch += 1
            moved()

    def _chosen(self, epoch: int) -> list[Seeded]:
        """What the epoch reads, batch for batch."""
        for part in self._parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
            if isinstance(generator := getattr(part, "generator", None), torch.Generator):
                generator.manual_seed(self._seed_of(epoch))
        with seeded(self._seed_of(epoch)):
            found = list(self._source)
        return [Seeded(self._seed_of(epoch, number), chosen) for number, chosen in enumerate(found)]

    def _seed_of(self, *place: int) -> int:
        """63 bits, as torch takes them."""
        digest = hashlib.sha256(repr((self._seed, self._rank, *place)).encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Python's, NumPy's and torch's generators of random numbers on the CPU have this seed within the block, and are then as before."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
