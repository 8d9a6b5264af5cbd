"""The batches of a DataLoader from a step on: the same as in a run from the beginning, and nothing else is read."""

import os
import random
import re
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

from ddpjob.session import Session
from ddpjob_session.batches import Epochs


class Noisy(data.Dataset[Any]):
    """Each sample has its number and what was drawn for it; what was read is in `read`, without workers."""

    def __init__(self, size: int = 23) -> None:
        self.size, self.read = size, []  # type: ignore[var-annotated]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.read.append(index)
        drawn = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: S311 - as augmentation does
        return torch.tensor([index, drawn], dtype=torch.float64)


class ByLength(data.Sampler[list[int]]):
    """A batch sampler whose epochs have different numbers of batches."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([[self.epoch, number] for number in range(3 + self.epoch)])


def loader(kind: str, **more: Any) -> data.DataLoader[Any]:
    dataset = Noisy()
    split: Any = data.DistributedSampler(dataset, 2, 1, shuffle=True)
    kinds: dict[str, dict[str, Any]] = {
        "distributed": {"batch_size": 3, "sampler": split},
        "drop_last": {"batch_size": 3, "sampler": split, "drop_last": True},
        "shuffle": {"batch_size": 4, "shuffle": True},
        "shuffle with a generator": {"batch_size": 4, "shuffle": True, "generator": torch.Generator()},
        "weights": {"batch_size": 4, "sampler": data.WeightedRandomSampler([1.0] * 23, 20)},
        "batch sampler": {"batch_sampler": data.BatchSampler(split, 3, drop_last=False)},
        "uneven epochs": {"batch_sampler": ByLength()},
        "no batches": {"batch_size": None, "sampler": split},
        "workers": {"batch_size": 3, "sampler": split, "num_workers": 2},
        "persistent workers": {"batch_size": 3, "sampler": split, "num_workers": 1, "persistent_workers": True},
    }
    return data.DataLoader(dataset, **kinds[kind], **more)


def batches(loaded: data.DataLoader[Any], first: int, count: int) -> list[Any]:
    return [batch.tolist() for batch in islice(Epochs(loaded, seed=7, rank=0).from_batch(first, lambda: None), count)]


@pytest.mark.parametrize(
    "kind",
    [
        *("distributed", "drop_last", "shuffle", "shuffle with a generator", "weights"),
        *("batch sampler", "uneven epochs", "no batches", "workers", "persistent workers"),
    ],
)
def test_a_run_continues_with_the_batches_of_one_that_was_never_interrupted(kind):
    whole = batches(loader(kind), 0, 16)
    for first in (1, 5, 11):
        torch.manual_seed(first)  # what else draws makes no difference
        assert batches(loader(kind), first, 16 - first) == whole[first:]


def test_only_what_is_used_is_read_and_other_draws_are_as_without_the_loader():
    loaded = loader("distributed")
    torch.manual_seed(3)
    random.seed(3)
    assert len(batches(loaded, 3, 1)[0]) == 3
    assert len(loaded.dataset.read) == 3  # type: ignore[attr-defined]
    after = torch.rand(()), random.random()  # noqa: S311
    torch.manual_seed(3)
    random.seed(3)
    assert after == (torch.rand(()), random.random())  # noqa: S311


def test_another_number_of_ranks_with_the_same_global_batch_continues_in_the_same_order():
    def global_batches(num_ranks: int, first: int) -> list[set[int]]:
        ranks = []
        for rank in range(num_ranks):
            sampler: Any = data.DistributedSampler(dataset := Noisy(24), num_ranks, rank, shuffle=True)
            loaded = data.DataLoader(dataset, 12 // num_ranks, sampler=sampler)
            ranks.append(batches(loaded, first, 4 - first))
        return [{int(sample[0]) for part in step for sample in part} for step in zip(*ranks, strict=True)]

    assert global_batches(3, 1) == global_batches(2, 0)[1:]


def test_a_loader_without_indices_says_who_has_to_know_the_position():
    class Stream(data.IterableDataset[Any]):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ValueError, match=r"data set has no indices, .*per_rank"):
        Epochs(data.DataLoader(Stream()), seed=0, rank=0)
    with pytest.raises(ValueError, match="epoch 0 of the loader has no batch"):
        batches(data.DataLoader(Noisy(1), 2, drop_last=True), 0, 1)


def run(total: int, *, batch_size: int = 4) -> list[list[int]]:
    """The numbers of the samples of each step of one attempt."""
    with Session() as session:
        coming = session.batches(data.DataLoader(Noisy(), batch_size, shuffle=True), per_step=2)
        session.track()
        return [[int(number) for _ in range(2) for number in next(coming)[:, 0]] for _ in session.steps(total)]


@pytest.mark.usefixtures("stop")
def test_a_session_knows_its_place_in_the_loader(tmp_path):
    resumed = run(4) + run(9)
    os.environ["DDPJOB_CHECKPOINT_DIR"] = str(tmp_path / "whole")
    assert run(9) == resumed


@pytest.mark.usefixtures("stop")
def test_a_step_of_another_size_is_another_place_in_the_data_and_is_refused(capfd):
    run(2)
    with pytest.raises(SystemExit, match="2"):
        run(4, batch_size=5)
    assert re.search(r"a step has 10 samples .* of 2\.5 steps.* it had 8 .* of 3", capfd.readouterr().err)
