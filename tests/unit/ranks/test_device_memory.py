"""Ranks that start again wait for the device memory of those that ended; what CUDA shows and the clock are given."""

from collections.abc import Iterator

import pytest
import torch

from ddpjob_ranks import slots
from ddpjob_ranks.device_memory import WAIT_SECONDS, use
from ddpjob_ranks.generation import FREE_MEMORY_SLOT, Generation
from support.fakes import Fake, fake

GIB = 2**30
DEVICE = torch.device("cuda", 0)


class Clock(Fake):
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def generation(memory: int, number: int) -> Generation:
    return Generation(number=number, pipe=-1, state_memory=-1, own_memory=memory, stores=-1)


def waited(memory: int, number: int, *shown: float | Exception) -> float:
    """Seconds that a generation waits for a GPU that shows this in turn, the last for good: GiB that are free, or an error."""
    looks: Iterator[float | Exception] = iter(shown)
    last: list[float | Exception] = []
    current: list[torch.device] = []

    def mem_get_info(device: torch.device) -> tuple[int, int]:
        assert (device, current) == (DEVICE, [])
        last[:] = [next(looks, *last)]
        if isinstance(last[0], Exception):
            raise last[0]
        return int(last[0] * GIB), 80 * GIB

    clock = Clock()
    use(DEVICE, generation(memory, number), fake(mem_get_info=mem_get_info, set_device=current.append), clock)
    assert current == [DEVICE]
    return clock.now


def test_the_first_ranks_do_not_wait(memory):
    assert waited(memory, 1, 3) == 0
    assert slots.step_of(memory, FREE_MEMORY_SLOT) == 3 * GIB


def test_the_next_ranks_wait_until_as_much_is_free_as_for_the_first(memory):
    waited(memory, 1, 79)
    assert 0 < waited(memory, 2, 20, 20, 50, 78) < 1
    assert waited(memory, 3, 78) == 0


def test_memory_that_stays_in_use_is_waited_for_no_longer_than_the_limit_and_reported(memory, capsys):
    waited(memory, 1, 79)
    assert waited(memory, 2, 20) == pytest.approx(WAIT_SECONDS, abs=1)
    assert "20.0 GiB of cuda:0 are free, and 79.0 GiB were when the ranks started first" in capsys.readouterr().err
    assert slots.step_of(memory, FREE_MEMORY_SLOT) == 79 * GIB


@pytest.mark.parametrize(
    "error", ["CUDA error: out of memory", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"]
)
def test_a_gpu_that_has_no_room_for_another_process_yet_is_waited_for(memory, error):
    """The first look creates the context of this process, and so does making the GPU the current one."""
    waited(memory, 1, 79)
    assert 0 < waited(memory, 2, RuntimeError(error), RuntimeError(error), 78) < 1
    assert waited(memory, 3, RuntimeError(error)) == pytest.approx(WAIT_SECONDS, abs=1)


def test_another_error_of_a_gpu_is_raised(memory):
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        waited(memory, 2, RuntimeError("CUDA error: unspecified launch failure"))


def test_ranks_that_do_not_start_again_do_not_look():
    current: list[torch.device] = []
    use(DEVICE, None, fake(set_device=current.append), Clock())
    assert current == [DEVICE]


def test_ranks_on_cpus_do_not_look(memory):
    use(torch.device("cpu"), generation(memory, 2), fake(), Clock())
