"""Map-style data sets: the order and the randomness of samples do not depend on who reads them."""

import multiprocessing
import random
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from ddpjob.recipe import Data
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.data import Feed
from ddpjob_trainer.export import is_safetensors, read_tensors, write_tensors
from ddpjob_trainer.loading import LoadedFeed, moved_to, prepare
from ddpjob_trainer.sampling import Sampling
from support.fakes import fake

CPU = torch.device("cpu")
NUM_SAMPLES, BATCH_SIZE = 11, 4
SIDE: Any = "side"  # a stream


class Drawing:
    """Samples that are their number and what they draw from each generator, those of the data set and its transforms too."""

    version: str
    targets: Any

    def __init__(self) -> None:
        transform = fake(own=random.Random())  # noqa: S311 - no secret
        self.transforms = [transform.own.random, torch.nn.Identity()]
        self.generator, self.legacy = np.random.default_rng(), np.random.RandomState()
        self.wrapped = fake(dataset=self, generator=torch.Generator())

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, sample: int) -> dict[str, object]:
        drawn = [random.random(), float(np.random.rand()), torch.rand(()).item()]  # noqa: S311
        drawn += [self.transforms[0](), self.generator.random(), self.legacy.rand()]
        drawn += [torch.rand((), generator=self.wrapped.generator).item()]
        return {"sample": sample, "drawn": torch.tensor(drawn, dtype=torch.float64)}


def collated(samples: list[dict[str, object]]) -> dict[str, torch.Tensor]:
    """A batch with numbers that are drawn for all of it."""
    batch = default_collate(samples)
    drawn = [random.random(), float(np.random.rand()), torch.rand(()).item()]  # noqa: S311
    return batch | {"together": torch.tensor(drawn, dtype=torch.float64)}


def seen(*, num_workers: int, world_size: int, steps: range) -> tuple[list[tuple[int, list[float]]], list[list[float]]]:
    """The samples of these steps on all ranks, in order, and what was drawn for each batch."""
    config = fake(data_workers=num_workers, seed=3)
    split: Any = prepare(Data(train=Drawing(), test=Drawing(), collate=collated), config, CPU).train
    plan = Sampling(num_samples=NUM_SAMPLES, global_batch_size=BATCH_SIZE, seed=3, device=CPU)
    found, together = list[Any](), list[Any]()
    feeds = [Feed(split=split, sampling=plan, rank=rank, world_size=world_size) for rank in range(world_size)]
    ahead = [LoadedFeed(feed, split, num_steps=9) for feed in feeds]
    for step in steps:
        for feed in ahead:
            batch = feed.batch(step)
            if batch.weight:
                found += zip(batch.content["sample"].tolist(), batch.content["drawn"].tolist(), strict=True)
                together.append(batch.content["together"].tolist())
    return found, together


@pytest.mark.parametrize(("num_workers", "world_size"), [(0, 3), (2, 1), (1, 2)])
def test_samples_are_the_same_whatever_the_number_of_workers_and_ranks(num_workers, world_size):
    alone, _ = seen(num_workers=0, world_size=1, steps=range(9))
    assert [sample for sample, _ in alone[:NUM_SAMPLES]] != [
        sample for sample, _ in alone[NUM_SAMPLES : 2 * NUM_SAMPLES]
    ]
    assert len({tuple(drawn) for _, drawn in alone}) == 3 * NUM_SAMPLES, "each epoch draws other numbers for a sample"
    assert seen(num_workers=num_workers, world_size=world_size, steps=range(9))[0] == alone
    assert seen(num_workers=num_workers, world_size=world_size, steps=range(5, 9))[0] == alone[NUM_SAMPLES + 8 :]


def test_what_is_drawn_for_a_batch_is_the_same_whatever_the_number_of_workers():
    torch.manual_seed(1)
    _, alone = seen(num_workers=0, world_size=1, steps=range(9))
    torch.manual_seed(2)
    assert len(set(map(tuple, alone))) == 9
    assert seen(num_workers=2, world_size=1, steps=range(9))[1] == alone
    assert seen(num_workers=0, world_size=1, steps=range(5, 9))[1] == alone[5:]


def test_reading_samples_leaves_the_generators_of_the_layers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    seen(num_workers=0, world_size=1, steps=range(3))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_mistake_that_a_data_set_names_is_its_text_alone(num_workers):
    class Broken(Drawing):
        def __getitem__(self, sample: int) -> dict[str, object]:
            raise ConfigError("the images are of another job")

    config = fake(data_workers=num_workers, seed=3)
    split: Any = prepare(Data(train=Broken(), test=Broken()), config, CPU).train
    with pytest.raises(ConfigError, match=r"^the images are of another job$"):
        next(split.loaded([[(0, 1)]]))
    with pytest.raises(ConfigError, match=r"^the images are of another job$"):
        split.augmented(torch.tensor([1]), seed=3, epoch=0)


def test_samples_that_are_read_ahead_are_those_that_the_rank_itself_reads():
    config = fake(data_workers=0, seed=3)
    split: Any = prepare(Data(train=Drawing(), test=Drawing()), config, CPU).train
    ahead = next(split.loaded([[(2, 5), (2, 7)]]))
    assert torch.equal(ahead["drawn"], split.augmented(torch.tensor([5, 7]), seed=3, epoch=2)["drawn"])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_of_numpy_stays_numpy(num_workers):
    config = fake(data_workers=num_workers, seed=3)
    data = Data(train=Drawing(), test=Drawing(), collate=lambda samples: np.array([s["sample"] for s in samples]))
    split: Any = prepare(data, config, CPU).train
    (batch,) = split.loaded([[(0, 1), (0, 2)]])
    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == [1, 2]


def test_held_out_samples_are_the_same_in_each_evaluation():
    config = fake(data_workers=1, seed=3)
    split: Any = prepare(Data(train=Drawing(), test=Drawing()), config, CPU).test
    first, second = ([batch["drawn"] for batch in split.batches(slice(2, 9), 3)] for _ in range(2))
    assert [len(batch) for batch in first] == [3, 3, 1]
    assert torch.equal(torch.cat(first), torch.cat(second))


def test_workers_are_children_of_the_rank_whose_end_they_follow(monkeypatch):
    monkeypatch.setattr(
        multiprocessing.context._default_context, "_actual_context", multiprocessing.get_context("spawn")
    )
    loader: Any = prepare(Data(train=Drawing(), test=Drawing()), fake(data_workers=1, seed=3), CPU).train
    assert loader._loader([], stream=0).multiprocessing_context.get_start_method() == "fork"


def test_a_directory_whose_path_is_too_long_for_the_sockets_of_workers_is_refused(monkeypatch):
    """multiprocessing would print an error in the worker, and the rank would wait for a batch for ever."""
    data, config = Data(train=Drawing(), test=Drawing()), fake(data_workers=1, seed=3)
    monkeypatch.setattr("tempfile.tempdir", "/" + "t" * 74)
    prepare(data, config, CPU)
    monkeypatch.setattr("tempfile.tempdir", "/" + "t" * 75)
    with pytest.raises(ConfigError, match=r"dataWorkers: 1: .* has a path of 76 bytes.*set TMPDIR to a shorter path"):
        prepare(data, config, CPU)
    prepare(data, fake(data_workers=0, seed=3), CPU)


def test_a_data_set_may_have_a_version_of_its_own():
    config = fake(data_workers=0, seed=3)
    train, test = Drawing(), Drawing()
    before = prepare(Data(train=train, test=test, version="1"), config, CPU)
    before_test = before.test.fingerprint()
    test.version = "b"
    after = prepare(Data(train=train, test=test, version="1"), config, CPU)
    assert after.train.fingerprint() == before.train.fingerprint()
    assert after.test.fingerprint() != before_test


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, list])
def test_each_label_counts_for_the_fingerprint(kind):
    config = fake(data_workers=0, seed=3)
    fingerprints = set()
    for changed in (0, 1):
        dataset = Drawing()
        dataset.targets = kind([0] * 1500 + [changed] + [0] * 1500)
        fingerprints.add(prepare(Data(train=dataset, test=Drawing()), config, CPU).train.fingerprint())
    assert len(fingerprints) == 2


def test_a_safetensors_file_has_every_tensor_of_a_model():
    tensors = {
        "weight": torch.randn(3, 2).t(),
        "half": torch.randn(5).bfloat16(),
        "count": torch.tensor(7),
        "nothing": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
    }
    written = bytearray()
    write_tensors(tensors, fake(write=written.extend))
    assert is_safetensors(bytes(written))
    read = read_tensors(bytes(written))
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name], tensor)
    with pytest.raises(ValueError, match="tensor flags"):
        read_tensors(bytes(written[:-1]))


@pytest.fixture
def calls(monkeypatch):
    """What is called of a GPU's streams, in order."""
    calls: list[str] = []

    @contextmanager
    def within(stream):
        calls.append(f"copy by {stream}")
        yield
        calls.append("copied")

    current = fake(wait_stream=lambda stream: calls.append(f"wait for {stream}"))
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: calls.append("record"))
    return calls


def test_a_batch_for_a_gpu_is_copied_by_a_stream_of_its_own_which_the_step_waits_for(calls):
    batch = {"image": torch.ones(2), "more": [torch.ones(1), "name"]}
    assert moved_to(CPU, batch, SIDE)["more"][1] == "name"
    assert calls == ["copy by side", "copied", "wait for side", "record", "record"]


def test_a_batch_whose_tensors_cannot_be_found_is_copied_by_the_stream_of_the_step(calls):
    opaque = fake(to=lambda *_, **__: "moved")
    assert moved_to(CPU, {"image": torch.ones(2), "more": opaque}, SIDE)["more"] == "moved"
    assert calls == []
