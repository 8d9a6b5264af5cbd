"""What `ddpjob top` makes of the reports of ranks."""

from typing import Any

import pytest

from ddpjob.client import RankProgress, RankState
from ddpjob_cli.commands.top import notes, row
from ddpjob_cli.speeds import Speed, speeds


def state(rank: int, *, step: int = 100, exposed: float = 1.0, num_samples: int = 800, **more: Any) -> RankState:
    """A rank that has trained for 10 s: 1 s of data, 8 s of passes with `exposed` of communication, 1 s of agreement."""
    seconds = {"data": 1.0, "forward": 4.0, "backward": 4.0, "agree": 1.0, "exposed": exposed}
    fields = {"seconds": seconds, "has_communication": True, **more}
    return RankState(
        rank=rank, step=step, phase="data", seconds_in_phase=0.1, num_samples=num_samples, memory_bytes=2**30, **fields
    )


def ranks(*states: RankState | None) -> list[RankProgress]:
    pod: Any = type("Pod", (), {"name": "j-1-0", "node": "n"})()
    return [
        RankProgress(rank=found.rank if found else None, pod=pod, state=found, error="" if found else "no module")
        for found in states
    ]


def test_shares_are_of_the_time_since_the_first_step() -> None:
    (speed,) = speeds(ranks(state(0, exposed=2.0)), {}, world_size=4)
    assert (speed.data_share, speed.communication_share) == (0.1, 0.3)
    assert speed.samples_per_second == 20, "800 samples of 4 ranks in 10 s"


def test_a_second_look_shows_the_time_in_between() -> None:
    before = state(0, num_samples=800)
    now = state(0, num_samples=1000, seconds={name: 3 * value for name, value in before.seconds.items()})
    (speed,) = speeds(ranks(now), {0: before}, world_size=1)
    assert speed.samples_per_second == 10, "200 samples in 20 s"
    (unchanged,) = speeds(ranks(before), {0: before}, world_size=1)
    assert unchanged.samples_per_second == 80, "no step has been logged in between"
    restarted = state(0, num_samples=80)
    (again,) = speeds(ranks(restarted), {0: before}, world_size=1)
    assert again.samples_per_second == 8, "the rank has started again"


@pytest.mark.parametrize(
    ("exposed", "slowest", "waiting"), [((3.0, 0.5, 3.0), 1, 0.25), ((1.0, 0.9, 1.0), None, None), ((3.0,), None, None)]
)
def test_the_rank_that_waits_least_keeps_the_others_waiting(
    exposed: tuple[float, ...], slowest: int | None, waiting: float | None
) -> None:
    found = speeds(ranks(*(state(rank, exposed=value) for rank, value in enumerate(exposed))), {}, world_size=3)
    marked = {speed.rank: speed.waiting_share for speed in found if speed.waiting_share is not None}
    assert marked == ({} if slowest is None else {slowest: waiting})


def test_what_is_not_known_is_a_dash_and_a_note_says_why() -> None:
    starting = state(0, seconds={}, has_communication=False, num_samples=0)
    found = speeds(ranks(starting, state(1, step=99), None), {}, world_size=2)
    assert row(found[0]) == ["0", "n", "100", "data", "-", "-", "-", "1.0 GiB", "-", ""]
    assert row(found[1])[-1] == "behind"
    assert row(found[2]) == ["-", "n", "-", "-", "-", "-", "-", "-", "-", "no answer"]
    text = "\n".join(notes("j", found))
    for part in (
        "pod j-1-0: no module",
        "ddpjob logs j -f",
        "DATA and COMM are known from the second log line",
        "the ranks use no GPU",
    ):
        assert part in text


def test_memory_of_a_gpu_and_a_long_phase() -> None:
    speed = Speed(
        rank=0,
        pod="p",
        node="n",
        phase="backward",
        seconds_in_phase=42.0,
        gpu_memory_bytes=2**30,
        gpu_memory_total_bytes=80 * 2**30,
        waiting_share=0.5,
    )
    assert row(speed)[3] == "backward 42s"
    assert row(speed)[-2:] == ["1.0 GiB of 80.0 GiB", "slowest: others wait 50 % of the time"]
