"""What the monitor of one rank does after looking at the mark of its progress at given times."""

import pytest

from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch.idleness import Action, Idleness, Timing

TIMING = Timing(answer_seconds=4.0)  # looks each second; a gap of more than 2 s is a pause
LIMIT = 10.0


def seconds(*looks: tuple[float, float]) -> float:
    """How long the mark has not moved, after looks of (time, when the mark moved last)."""
    state = Idleness.starting(since=0.0, now=0.0)
    for now, since in looks:
        state = state.at(since, now, TIMING)
    return state.idle.seconds


def actions(*looks: tuple[float, int], since: float = 0.0) -> list[Action]:
    """What follows from looks of (time, round)."""
    state, found = Idleness.starting(since=0.0, now=0.0), []
    for now, number in looks:
        state, action = state.at(since, now, TIMING).act(limit_seconds=LIMIT, round_number=number, timing=TIMING)
        found.append(action)
    return found


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(1, 0), (2, 0), (3.5, 0)], 3.5),
        ([(1, 0), (2, 0), (3, 2.25)], 0.75),  # a mark that moves starts again at that moment
        ([(1, 0), (101, 0), (102, 0)], 1 + TIMING.longest_gap_seconds + 1),  # a pause counts as one gap
        ([(1, 0), (101, 1.5)], TIMING.longest_gap_seconds),  # also after the mark has moved
    ],
)
def test_the_time_since_the_mark_moved_is_counted_without_pauses_of_the_machine(looks, expected):
    assert seconds(*looks) == expected


def test_each_round_is_started_once_and_the_first_one_at_the_limit():
    found = actions(*((now, 0) for now in range(1, 13)), (13, 1), (14, 1))
    assert found == [*9 * [Action.NONE], Action.ASK, Action.NONE, Action.NONE, Action.ASK, Action.NONE]


def test_a_round_that_does_not_end_is_the_end():
    found = actions(*((now, 0) for now in range(1, 40)))
    asked = found.index(Action.ASK)
    assert found.index(Action.END) == asked + 1 + TIMING.silence_seconds


def test_a_pause_does_not_end_a_round():
    assert Action.END not in actions(*((now, 0) for now in range(1, 12)), (500, 0))


@pytest.mark.parametrize(("step_seconds", "answer_seconds"), [(300, 5), (2, 2)])
def test_short_limits_are_watched_more_closely(step_seconds, answer_seconds):
    timing = Timing.of(Limits(first_step_seconds=600, step_seconds=step_seconds))
    assert timing.answer_seconds == answer_seconds
    assert timing.longest_gap_seconds < step_seconds, "a pause alone is never longer than the limit"
