# ruff: noqa: N803, N806 - tensors carry their shape in their name
"""Any map-style data set: PyTorch's DataLoader reads it, in worker processes, in the order of this trainer's sampling.

Workers get (epoch, sample) pairs and seed the generators of random numbers from them before they read a sample. So each
sample is a function of (seed, epoch, sample), whatever the number of workers and ranks and wherever a run resumes. Before a
batch is collated they are seeded from (epoch, first sample of the batch).
"""

import gc
import hashlib
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from ddpjob_ranks import children, prctl
from ddpjob_ranks.cpus import cpus_of_this_rank
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import randomness
from ddpjob_trainer.config import ResolvedConfig
from ddpjob_trainer.data import Batch, Feed, ImageData

#: More workers than this need `dataWorkers`: each has its own copy of what the data set keeps in memory.
MAX_DEFAULT_WORKERS = 8
#: Batches that each worker prepares ahead.
PREFETCHED = 2
#: Workers pass tensors through a Unix socket, whose path has at most 107 bytes. `multiprocessing` makes it below the directory
#: for temporary files, and needs 32 of them: /pymp-????????/listener-????????
MAX_TEMPORARY_DIRECTORY = 107 - 32
#: Kinds of generators that a data set may have of its own.
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)
#: In place of a hash in the fingerprint of a data set whose content is not known. Samples are not hashed, since reading one
#: may be slow, or draw random numbers.
UNKNOWN = "no version"
#: A longer list or dictionary of a data set is not searched for generators.
MAX_PARTS = 100
CPU = torch.device("cpu")


class MapStyle(Protocol):
    """What `torch.utils.data.Dataset` of the map style has: a length, and samples by their number."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """One sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Two map-style data sets: one to train on, and one that training never sees.

    Attributes:
        train: Samples for training. It may draw random numbers from the generators of Python, NumPy and torch, and from
            generators of its own that are attributes of it, of its transforms or of data sets that it wraps.
        test: Samples for evaluation.
        collate: Makes a batch of a list of samples; PyTorch's default makes (inputs, labels) of (input, label) samples.
            It may draw random numbers as `train` does; they depend on the batch, so also on the number of ranks.
        version: What distinguishes these data from others of the same length, such as a revision or a checksum; a data set
            may have an attribute `version` of its own, a string. A run resumes only with the same version, number of samples
            and, where the training data have them, `targets`; of held-out data it reports a change.
    """

    train: MapStyle
    test: MapStyle
    collate: Callable[[list[Any]], Any] = default_collate
    version: str = ""


def prepare(data: Data | ImageData, config: ResolvedConfig, device: torch.device) -> ImageData:
    """The data for the device that trains.

    Raises:
        ConfigError: workers cannot pass what they have read; a batch would never arrive.
    """
    if isinstance(data, ImageData):
        return data.to(device)
    num_workers = config.data_workers
    if num_workers is None:
        num_workers = min(MAX_DEFAULT_WORKERS, cpus_of_this_rank(os.environ))
    length = len(os.fsencode(temporary := tempfile.gettempdir()))
    if num_workers and length > MAX_TEMPORARY_DIRECTORY:
        raise ConfigError(
            f"dataWorkers: {num_workers}: the directory for temporary files, {temporary}, has a path of {length} bytes, and"
            f" workers need one of at most {MAX_TEMPORARY_DIRECTORY}; set TMPDIR to a shorter path, or dataWorkers to 0"
        )
    train, test = (
        Samples(
            dataset=dataset,
            collate=data.collate,
            version=data.version,
            num_workers=num_workers,
            seed=config.seed,
            target=device,
        )
        for dataset in (data.train, data.test)
    )
    return ImageData(train=train, test=test)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A map-style data set as a split (`data.Images`). Its batches are on `target`."""

    dataset: MapStyle
    collate: Callable[[list[Any]], Any]
    version: str
    num_workers: int
    seed: int
    target: torch.device
    #: By part and size of batches. Their workers are kept for the next evaluation: each has 9 MiB of its own, beyond the
    #: memory of the data set that it shares with the rank, and takes 0.3 s to start (two busy cores of an AMD EPYC).
    _held_out: dict[tuple[int, int, int], DataLoader[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def device(self) -> torch.device:
        """Sample ids are needed on the CPU."""
        return CPU

    def to(self, device: torch.device) -> "Samples":
        """This split for another device that trains."""
        return replace(self, target=device)

    def augmented(self, ids_B: torch.Tensor, *, seed: int, epoch: int) -> Any:
        """These samples, read by this process."""
        keys = [(epoch, sample) for sample in ids_B.tolist()]
        return next(self._moved([Seeded(self.dataset, self.collate, seed=seed, stream=randomness.SAMPLE)[keys]]))

    def batches(self, part: slice, size: int) -> Iterator[Any]:
        """The samples of the part in order; each is the same in every evaluation."""
        key = part.start, part.stop, size
        if key not in self._held_out:
            samples = range(part.start, part.stop)
            keys = [[(0, sample) for sample in samples[start : start + size]] for start in range(0, len(samples), size)]
            self._held_out[key] = self._loader(keys, stream=randomness.HELD_OUT_SAMPLE, persistent=len(keys) > 1)
        return self._moved(self._held_out[key])

    def fingerprint(self) -> str:
        """The number of samples, and a hash of the version and, where the data set has them, of its own version and the labels."""
        labels, own = getattr(self.dataset, "targets", ""), getattr(self.dataset, "version", "")
        version = self.version + (own if isinstance(own, str) else "")
        if isinstance(labels, str) and not version:
            return f"{len(self)} samples, {UNKNOWN}"
        # The text of a long array leaves out its middle.
        text = f"{version} {labels.tolist() if hasattr(labels, 'tolist') else labels}"
        return f"{len(self)} samples, {hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def loaded(self, keys: Iterable[list[tuple[int, int]]]) -> Iterator[Any]:
        """A batch for training for each list of (epoch, sample), read ahead by new workers."""
        return self._moved(self._loader(keys, stream=randomness.SAMPLE))

    def _loader(
        self, keys: Iterable[list[tuple[int, int]]], *, stream: int, persistent: bool = True
    ) -> DataLoader[Any]:
        """With workers, if it is `persistent`: they wait for its next use."""
        num_workers = self.num_workers if persistent else 0
        if num_workers:
            children.never_outstay()
        return DataLoader(
            Seeded(self.dataset, self.collate, seed=self.seed, stream=stream),
            batch_size=None,  # `Seeded` collates
            sampler=keys,  # lists of pairs in place of indices
            collate_fn=lambda batch: batch,  # the default one, default_convert, would make tensors of NumPy arrays
            num_workers=num_workers,
            # Not by a fork server, Python 3.14's default: they would not be children of the rank, and outlive it.
            multiprocessing_context="fork" if num_workers else None,
            prefetch_factor=PREFETCHED if num_workers else None,
            persistent_workers=num_workers > 0,
            pin_memory=self.target.type == "cuda",
            worker_init_fn=_begin_worker,
            generator=torch.Generator(),  # the default one is that of the model's layers
        )

    def _moved(self, loader: Iterable[Any]) -> Iterator[Any]:
        stream = _stream_of_copies(self.target)
        for content in loader:
            if isinstance(content, ConfigError):
                raise content
            yield moved_to(self.target, content, stream)


class Seeded(Dataset[Any]):
    """The batches of a map-style data set, whose samples are functions of (seed, epoch, sample)."""

    def __init__(self, dataset: MapStyle, collate: Callable[[list[Any]], Any], *, seed: int, stream: int) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._stream = stream
        self._own = list(own_generators(dataset, collate))

    def __getitem__(self, keys: list[tuple[int, int]]) -> Any:
        """The batch of these samples, by (epoch, sample).

        Or the ConfigError that the data set has raised: DataLoader would make the traceback of its worker the text of it.
        """
        try:
            return self._batch(keys)
        except ConfigError as error:
            return error

    def _batch(self, keys: list[tuple[int, int]]) -> Any:
        with _generators_restored():
            samples = []
            for epoch, sample in keys:
                self._seed_generators(epoch, sample, self._stream)
                samples.append(self._dataset[sample])
            self._seed_generators(*keys[0], randomness.COLLATED + self._stream)
            return self._collate(samples)

    def _seed_generators(self, epoch: int, sample: int, stream: int) -> None:
        drawn = randomness.layer_seed(seed=self._seed, step=epoch, rank=sample, stream=stream)
        random.seed(drawn)
        np.random.seed(drawn)
        torch.default_generator.manual_seed(drawn)
        for generator in self._own:
            match generator:
                case torch.Generator():
                    generator.manual_seed(drawn)
                case np.random.Generator():
                    bits = generator.bit_generator
                    bits.state = type(bits)(drawn).state
                case _:
                    generator.seed(drawn)


def own_generators(*values: Any) -> Iterator[Any]:
    """The generators of random numbers that are attributes of the values or of what they consist of, each once."""
    seen: dict[int, Any] = {}
    left = list(values)
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | torch.Tensor | np.ndarray):
            continue
        seen[id(value)] = value
        if isinstance(value, GENERATORS):
            yield value
        elif isinstance(value, MethodType | BuiltinMethodType):
            left.append(value.__self__)
        elif isinstance(value, list | tuple | dict):
            left += () if len(value) > MAX_PARTS else value.values() if isinstance(value, dict) else value
        else:
            left += getattr(value, "__dict__", {}).values()


@contextmanager
def _generators_restored() -> Iterator[None]:
    """Leave the global generators as they were, unless this is a worker, where nothing else uses them."""
    if get_worker_info() is not None:
        yield
        return
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _begin_worker(_: int) -> None:
    """In a new worker: it dies with its rank, which alone decides when to stop."""
    prctl.die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.enable()  # the rank's loop collects garbage itself


class LoadedFeed:
    """The batches of a feed, read ahead by the workers of a DataLoader, none after the last step."""

    def __init__(self, feed: Feed, samples: Samples, *, num_steps: int) -> None:
        self.sampling = feed.sampling
        self._feed = feed
        self._samples = samples
        self._num_steps = num_steps
        self._coming: Iterator[Any] = iter(())
        self._next = -1

    def batch(self, step: int) -> Batch:
        """The rank's samples of the step. Waits until they are read. Steps in another order start new workers."""
        if step != self._next:
            self._coming = self._samples.loaded(self._keys(step))
        self._next = step + 1
        return self._feed.of(step, next(self._coming))

    def _keys(self, first: int) -> Iterator[list[tuple[int, int]]]:
        for step in range(first, self._num_steps):
            ids_B, _ = self._feed.part(step)
            epoch = self.sampling.epoch_of(step)
            yield [(epoch, sample) for sample in ids_B.tolist()]


@cache
def _stream_of_copies(device: torch.device) -> torch.cuda.Stream | None:
    """One stream for all copies to a GPU: torch keeps freed memory for each stream apart, so a new one would allocate again."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def moved_to(device: torch.device, value: Any, stream: torch.cuda.Stream | None = None) -> Any:
    """The nested value with its tensors on the device.

    They are copied by the stream of a GPU while its current stream still computes the step before. A value that consists of
    more than tensors may hold device memory that cannot be found, so the current stream copies it.
    """
    if stream is None or not all(isinstance(leaf, torch.Tensor) for leaf in _leaves(value)):
        return _moved_to(device, value)
    with torch.cuda.stream(stream):
        moved = _moved_to(device, value)
    current = torch.cuda.current_stream(device)
    current.wait_stream(stream)
    for tensor in _leaves(moved):
        tensor.record_stream(current)  # else the next copy could be given its memory while that still reads it
    return moved


def _moved_to(device: torch.device, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved_to(device, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_moved_to(device, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _leaves(value: Any) -> Iterator[Any]:
    """What `_moved_to` moves within a nested value."""
    if hasattr(value, "to"):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
