"""Each sample counts once in an epoch, in an order that depends only on seed, epoch and step."""

import re
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.digits import digits
from ddpjob_trainer.data import Feed, Preparation, Split
from ddpjob_trainer.sampling import Sampling, check_shares, share
from support.fakes import fake

CPU = torch.device("cpu")
sizes = st.integers(1, 300)
worlds = st.integers(1, 17)


def sampling(num_samples: int, global_batch_size: int, seed: int = 0) -> Sampling:
    return Sampling(num_samples=num_samples, global_batch_size=global_batch_size, seed=seed, device=CPU)


def epoch(plan: Sampling, number: int) -> list[list[int]]:
    steps = range(number * plan.steps_per_epoch, (number + 1) * plan.steps_per_epoch)
    return [plan.global_batch(step).tolist() for step in steps]


def order(num_samples: int, batch: int, seed: int, number: int) -> list[int]:
    return [sample for ids in epoch(sampling(num_samples, batch, seed), number) for sample in ids]


def part_sizes(*, num_samples: int, batch: int, world_size: int, size: int) -> list[list[int]]:
    """The sizes of the parts of each rank in the first step."""
    split = fake(augmented=lambda ids, **_: ids)
    plan = sampling(num_samples, batch)
    feeds = [Feed(split=split, sampling=plan, rank=rank, world_size=world_size) for rank in range(world_size)]
    return [[part.num_samples for part in feed.batch(0).parts(size)] for feed in feeds]


@settings(deadline=None)
@given(batch=sizes, world_size=worlds, size=st.integers(2, 40))
def test_all_ranks_have_equally_many_parts_for_the_collectives_of_sync_batch_norm(batch, world_size, size):
    parts = part_sizes(num_samples=batch, batch=batch, world_size=world_size, size=size)
    assert len({len(of_rank) for of_rank in parts}) == 1
    assert all(1 <= num_samples <= size for of_rank in parts for num_samples in of_rank)


@settings(deadline=None)
@given(batch=st.integers(2, 60), world_size=st.integers(1, 5), size=st.integers(1, 8))
def test_a_model_with_batch_norm_never_gets_a_part_of_one_sample(batch, world_size, size):
    parts = part_sizes(num_samples=batch, batch=batch, world_size=world_size, size=size)
    model = torch.nn.BatchNorm1d(1)
    if min(map(min, parts)) > 1:
        check_shares(model, sampling(batch, batch), world_size=world_size, micro_batch_size=size)
    else:
        with pytest.raises(ConfigError, match="BatchNorm needs"):
            check_shares(model, sampling(batch, batch), world_size=world_size, micro_batch_size=size)


@settings(deadline=None)
@given(num_samples=st.integers(0, 500), world_size=worlds)
def test_shares_are_disjoint_complete_and_even(num_samples, world_size):
    parts = [range(num_samples)[share(num_samples, rank=r, world_size=world_size)] for r in range(world_size)]
    assert [sample for part in parts for sample in part] == list(range(num_samples))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@settings(deadline=None)
@given(num_samples=sizes, batch=sizes, seed=st.integers(0, 2**31 - 1), number=st.integers(0, 3))
def test_each_epoch_holds_each_sample_once_in_full_steps_but_the_last(num_samples, batch, seed, number):
    batches = epoch(sampling(num_samples, batch, seed), number)
    assert sorted(sample for ids in batches for sample in ids) == list(range(num_samples))
    assert all(len(ids) == batch for ids in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch


@settings(deadline=None)
@given(num_samples=st.integers(20, 300), batch=sizes, seed=st.integers(0, 2**31 - 2))
def test_order_changes_with_the_epoch_and_the_seed(num_samples, batch, seed):
    first = order(num_samples, batch, seed, 0)
    assert first != list(range(num_samples))
    assert first != order(num_samples, batch, seed, 1)
    assert first != order(num_samples, batch, seed + 1, 0)


@settings(deadline=None)
@given(num_samples=sizes, batch=sizes, steps=st.lists(st.integers(0, 1000), min_size=1, max_size=10))
def test_a_step_does_not_depend_on_the_steps_before_it(num_samples, batch, steps):
    used = sampling(num_samples, batch)
    for step in steps:
        assert torch.equal(used.global_batch(step), sampling(num_samples, batch).global_batch(step))


@settings(deadline=None)
@given(num_samples=st.integers(1, 60), batch=st.integers(1, 60), world_size=worlds, step=st.integers(0, 200))
def test_the_ranks_losses_average_to_the_mean_over_the_steps_samples(num_samples, batch, world_size, step):
    """Whatever the shares, ranks without a sample included: what DDP averages is the true gradient."""
    split = Split(
        images_NCHW=torch.arange(num_samples).remainder(250).to(torch.uint8).view(-1, 1, 1, 1),
        labels_N=torch.arange(num_samples) % 3,
        preparation=Preparation(mean=(0.0,), std=(250.0,), max_shift=0, flip="never"),
    )
    feeds = [
        Feed(split=split, sampling=sampling(num_samples, batch), rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    weights = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)

    def logits(images: torch.Tensor) -> torch.Tensor:
        return images.double().flatten(1) @ weights

    losses = [digits.loss_of(cast("Any", logits), feed.batch(step)) for feed in feeds]
    ids = feeds[0].sampling.global_batch(step)
    expected = torch.nn.functional.cross_entropy(
        logits(split.preparation.normalise(split.images_NCHW[ids])), split.labels_N[ids]
    )
    assert all(feed.batch(step).num_samples >= 1 for feed in feeds), "every rank joins the all-reduce"
    # Weights of samples are float32: half a unit in the last place is 6e-8 of each, and so of the sum in any order.
    torch.testing.assert_close(sum(losses) / world_size, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("num_samples", "batch", "world_size", "norm", "message"),
    [
        (100, 32, 2, torch.nn.BatchNorm2d, None),  # 4 in the last step: 2 for each
        (100, 32, 3, torch.nn.BatchNorm2d, "has 4, which gives one of 3 ranks 1; the model's BatchNorm needs 2"),
        (100, 32, 5, torch.nn.BatchNorm2d, "gives one of 5 ranks 0"),
        (97, 32, 1, torch.nn.BatchNorm2d, "has 1, which gives one of 1 ranks 1"),
        (96, 32, 16, torch.nn.BatchNorm1d, None),
        (96, 32, 17, torch.nn.BatchNorm1d, "has 32, which gives one of 17 ranks 1"),
        (20, 32, 11, torch.nn.BatchNorm2d, "has 20"),
        (100, 32, 4, torch.nn.SyncBatchNorm, None),
        (100, 32, 5, torch.nn.SyncBatchNorm, "gives one of 5 ranks 0; the model's SyncBatchNorm needs 1"),
        (97, 32, 17, torch.nn.Identity, None),
    ],
)
def test_shares_too_small_for_batch_norm_are_refused(num_samples, batch, world_size, norm, message):
    model, plan = torch.nn.Sequential(torch.nn.Linear(2, 4), norm(4)), sampling(num_samples, batch)
    if message is None:
        check_shares(model, plan, world_size=world_size)
        return
    with pytest.raises(ConfigError, match=message) as caught:
        check_shares(model, plan, world_size=world_size)
    advised = re.search(r"set globalBatchSize to (\d+)", str(caught.value))
    assert bool(advised) is (num_samples >= 2 * world_size)
    if advised:
        check_shares(model, sampling(num_samples, int(advised[1])), world_size=world_size)
