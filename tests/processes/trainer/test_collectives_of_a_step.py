"""A state that is kept in memory for a restart in place costs an undisturbed step no message between ranks."""

import re
from pathlib import Path

import pytest

from support.forked_ranks import started
from support.programs.counted_rank import AT_EXIT, COPIES, NOT_KEPT, NUM_STEPS


def counted(folder: Path, how: str) -> tuple[list[str], list[int]]:
    """The numbers of collectives of the steps, by rank, and the newest step that rank 0 had kept when each step began."""
    with started(folder, ranks=2, command=("support.programs.counted_rank", how)) as run:
        assert run.wait() == [0, 0], run.text()
        found = [re.search(r"collectives \[(.*)\], kept after \[(.*)\]", run.text(rank)) for rank in range(2)]
    return [match[1] for match in found], [int(step) for step in found[0][2].split(",")]


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """Of ranks that keep nothing in memory."""
    numbers, kept = counted(tmp_path_factory.mktemp("without"), NOT_KEPT)
    assert kept == [-1] * NUM_STEPS
    assert all(int(number) > 0 for of_rank in numbers for number in of_rank.split(",")), "they are counted"
    return numbers


@pytest.mark.parametrize("how", [AT_EXIT, COPIES])
def test_a_step_whose_state_is_kept_begins_as_many_collectives_as_one_without(without, how, tmp_path):
    """When a rank ends, as on CPUs, and by copies, here after each step, which those on GPUs make every few seconds."""
    numbers, kept = counted(tmp_path, how)
    assert kept[1:] == list(range(1, NUM_STEPS)), "each step was kept"
    assert numbers == without
