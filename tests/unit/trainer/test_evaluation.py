from types import SimpleNamespace

import pytest
import torch

from ddpjob_trainer.data import Preparation, Split
from ddpjob_trainer.evaluate import count_correct

NUM_SAMPLES = 10


def split() -> Split:
    return Split(
        images_NCHW=torch.arange(NUM_SAMPLES, dtype=torch.uint8).view(-1, 1, 1, 1),
        labels_N=torch.arange(NUM_SAMPLES) % 2,
        preparation=Preparation(mean=(0.0,), std=(1.0,), max_shift=0, flip="never"),
    )


def count(
    *, rank: int, world_size: int, asked: list[int], stop_at: int | None = None, batch_size: int = 2
) -> tuple[int, int] | None:
    def stop_reached() -> bool:
        asked.append(1)
        return len(asked) == stop_at

    gang = SimpleNamespace(
        rank=rank, world_size=world_size, device=torch.device("cpu"), sum_=lambda _: torch.tensor([4, NUM_SAMPLES])
    )
    model = torch.nn.Identity()
    found = count_correct(
        model,
        split(),
        lambda _, images: torch.eye(2)[images.flatten().long() % 2],
        gang,
        batch_size=batch_size,
        stop_reached=stop_reached,
    )
    assert model.training, "the model is in training mode again"
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_all_ranks_ask_equally_often_whatever_their_shares(world_size):
    times = []
    for rank in range(world_size):
        asked: list[int] = []
        count(rank=rank, world_size=world_size, asked=asked)
        times.append(len(asked))
    assert len(set(times)) == 1
    assert times[0] >= 1


def test_it_ends_at_the_batch_where_all_agree_to_stop():
    asked: list[int] = []
    assert count(rank=0, world_size=1, asked=asked, stop_at=3) is None
    assert len(asked) == 3
    assert count(rank=0, world_size=1, asked=[]) == (4, NUM_SAMPLES)


@pytest.mark.parametrize(("batch_size", "batches"), [(1, 10), (3, 4), (10, 1), (512, 1)])
def test_the_batch_size_is_that_of_the_configuration(batch_size, batches):
    asked: list[int] = []
    assert count(rank=0, world_size=1, asked=asked, batch_size=batch_size) == (4, NUM_SAMPLES)
    assert len(asked) == batches
