"""What layers draw is a function of (seed, step, rank)."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob_trainer.randomness import EVALUATION_LAYERS, TRAINING_LAYERS, layer_seed, seed_generators

CPU = torch.device("cpu")


def mask(*, seed: int = 0, step: int = 5, rank: int = 1, stream: int = TRAINING_LAYERS) -> list[float]:
    seed_generators(CPU, seed=seed, step=step, rank=rank, stream=stream)
    return torch.nn.functional.dropout(torch.ones(200)).tolist()


def test_a_mask_follows_from_seed_step_and_rank_and_not_from_what_was_drawn_before():
    first = mask()
    torch.rand(7)
    assert mask() == first
    assert first not in (mask(seed=1), mask(step=6), mask(rank=0), mask(stream=EVALUATION_LAYERS))


@settings(deadline=None)
@given(seed=st.integers(0, 2**31 - 1), step=st.integers(0, 10**9), ranks=st.sets(st.integers(0, 10**6), max_size=50))
def test_no_two_ranks_of_a_step_have_the_same_seed(seed, step, ranks):
    seeds = {layer_seed(seed=seed, step=step, rank=rank, stream=TRAINING_LAYERS) for rank in ranks}
    assert len(seeds) == len(ranks)
    assert all(0 <= each < 2**32 for each in seeds)
