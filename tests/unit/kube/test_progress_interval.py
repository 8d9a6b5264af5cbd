"""How often the log of a running job is read: less often as the job grows old, and in time for the limit on hangs."""

import pytest

from ddpjob_operator.kube.lookups.progress_reader import JITTER, pause_seconds, reads_per_second

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


@pytest.mark.parametrize(
    ("ran_seconds", "hang_seconds", "silent_seconds", "pause"),
    [
        (0, 900, 0, 10),
        (MINUTE, 900, 0, 10),
        (5 * MINUTE, 900, 0, 30),
        (10 * MINUTE, 900, 0, 60),
        (30 * DAY, 900, 0, 60),
        (-HOUR, 900, 0, 10),  # the clock was set back
        (DAY, 300, 0, 30),  # a hang is noticed a tenth of its limit late at most
        (DAY, 30, 0, 10),
        (DAY, 900, 870, 30),  # the next read comes when the limit passes
        (DAY, 900, 899, 10),
        (DAY, 900, 2000, 10),  # a slow phase, whose limit is longer
    ],
)
def test_the_pause_between_two_reads(ran_seconds, hang_seconds, silent_seconds, pause) -> None:
    assert pause_seconds(10, ran_seconds, hang_seconds, silent_seconds) == pause


def test_two_hundred_old_jobs_cost_fewer_than_two_hundred_reads_a_minute() -> None:
    mean_pause = pause_seconds(10, HOUR, 900, 0) * sum(JITTER) / 2
    lease_renewals = 10

    assert 200 * MINUTE / mean_pause + lease_renewals < 200


@pytest.mark.parametrize("num_jobs", [1, 200, 5000, 50_000])
def test_all_old_jobs_find_a_turn_within_their_pause(num_jobs: int) -> None:
    assert reads_per_second(num_jobs) >= num_jobs / pause_seconds(10, HOUR, 900, 0)


def test_an_interval_above_a_minute_is_kept() -> None:
    assert pause_seconds(300, DAY, 900, 0) == 300


@pytest.mark.parametrize("hang_seconds", [30, 60, 120, 300, 900, 3600, 86_400])
@pytest.mark.parametrize("ran_seconds", [0, 200, 10 * MINUTE, DAY])
def test_a_hang_is_noticed_soon_after_its_limit(hang_seconds: float, ran_seconds: float) -> None:
    """The worst case: the program hangs right after a read, and prints a last new step before the next one."""
    now, silent = 0.0, 0.0
    last_step = now = JITTER[1] * pause_seconds(10, ran_seconds, hang_seconds, 0)
    while silent < hang_seconds:
        now += JITTER[1] * pause_seconds(10, ran_seconds + now, hang_seconds, silent)
        silent = now - last_step
    late = now - hang_seconds

    assert late <= max(3 * 10 * JITTER[1], 0.25 * hang_seconds)
    assert late <= 2 * 60 * JITTER[1]
