"""How often the log of a running job is read: less often as it grows old or as jobs are many, and in time for a hang."""

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
    assert pause_seconds(10, ran_seconds, hang_seconds, silent_seconds, num_jobs=1) == pause


@pytest.mark.parametrize(
    ("num_jobs", "ran_seconds", "hang_seconds", "pause"),
    [
        (25, 2 * MINUTE, 900, 12),  # a few jobs do not notice each other
        (100, 2 * MINUTE, 900, 40),
        (100, HOUR, 900, 60),
        (1000, 2 * MINUTE, 900, 60),  # as seldom as an old job, and not less often
        (1000, 2 * MINUTE, 300, 30),  # a hang is noticed in time however many jobs there are
        (1000, 59, 900, 10),  # somebody may be watching a job that has just started
    ],
)
def test_many_jobs_share_the_reads(num_jobs, ran_seconds, hang_seconds, pause) -> None:
    assert pause_seconds(10, ran_seconds, hang_seconds, 0, num_jobs) == pause


@pytest.mark.parametrize("num_jobs", [30, 100, 200])
@pytest.mark.parametrize("ran_seconds", [MINUTE, 3 * MINUTE, HOUR])
def test_up_to_two_hundred_jobs_cost_fewer_than_two_hundred_requests_a_minute(num_jobs, ran_seconds) -> None:
    mean_pause = pause_seconds(10, ran_seconds, 900, 0, num_jobs) * sum(JITTER) / 2
    lease_renewals = 10

    assert num_jobs * MINUTE / mean_pause + lease_renewals < 200


@pytest.mark.parametrize("num_jobs", [1, 200, 5000, 50_000])
def test_all_old_jobs_find_a_turn_within_their_pause(num_jobs: int) -> None:
    assert reads_per_second(num_jobs) >= num_jobs / pause_seconds(10, HOUR, 900, 0, num_jobs)


def test_an_interval_above_a_minute_is_kept() -> None:
    assert pause_seconds(300, DAY, 900, 0, num_jobs=1) == 300


@pytest.mark.parametrize("hang_seconds", [30, 60, 120, 300, 900, 3600, 86_400])
@pytest.mark.parametrize("ran_seconds", [0, 200, 10 * MINUTE, DAY])
@pytest.mark.parametrize("num_jobs", [1, 1000])
def test_a_hang_is_noticed_soon_after_its_limit(num_jobs: int, hang_seconds: float, ran_seconds: float) -> None:
    """The worst case: the program hangs right after a read, and prints a last new step before the next one."""
    now, silent = 0.0, 0.0
    last_step = now = JITTER[1] * pause_seconds(10, ran_seconds, hang_seconds, 0, num_jobs)
    while silent < hang_seconds:
        now += JITTER[1] * pause_seconds(10, ran_seconds + now, hang_seconds, silent, num_jobs)
        silent = now - last_step
    late = now - hang_seconds

    assert late <= max(3 * 10 * JITTER[1], 0.25 * hang_seconds)
    assert late <= 2 * 60 * JITTER[1]
