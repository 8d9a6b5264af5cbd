"""Reads of the progress of running jobs: when, how many at a time, and what counts as silence."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TypeAlias, cast

import pytest

from ddpjob_operator.api.status import ReplacedPod
from ddpjob_operator.core.model import Observed
from ddpjob_operator.kube.lookups import progress_reader as progress_module
from ddpjob_operator.kube.lookups.progress_reader import JITTER, ProgressReader, pause_seconds, reads_per_second
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import UnavailableError
from simulation.virtual_time import OperatorClocks
from support.engine import happens
from support.fake_server import FakeServer
from support.lookup_jobs import JOB, KEY, Keys, minutes_pass, rank0, seen

LINE = 'ddpjob-progress {"step": %d}\n'


class Reading:
    """A progress reader, and the keys of the jobs whose progress changed."""

    def __init__(self, server: FakeServer) -> None:
        self.server, self.keys = server, Keys()
        self.reader = ProgressReader(cast("Client", server), 10.0, self.keys.put_nowait)
        self.latest, self.follow = self.reader.latest, self.reader.follow

    def silence(self) -> float:
        return self.reader.silent_seconds(KEY, "p0")

    async def more_reads(self, number: int) -> None:
        """Wait until the log was read so many times more."""
        wanted = self.server.num("log") + number
        await happens(lambda: self.server.num("log") >= wanted)


Readings: TypeAlias = Callable[[FakeServer], Reading]


@pytest.fixture
async def reading(virtual_clocks: OperatorClocks) -> AsyncIterator[Readings]:  # noqa: ARG001 the reader uses them
    """Starts readers of a server's logs, which end with the test."""
    running: list[tuple[asyncio.Task[None], ProgressReader]] = []

    def start(server: FakeServer) -> Reading:
        made = Reading(server)
        running.append((asyncio.create_task(made.reader.run()), made.reader))
        return made

    yield start
    for task, reader in running:
        task.cancel()
        await reader.stop()


async def following(reading: Readings, server: FakeServer) -> tuple[FakeServer, Reading]:
    """The reader of a job whose first progress was read."""
    read = reading(server)
    read.follow(seen("p0"))
    await read.keys.next()
    return server, read


async def test_progress_is_that_of_the_current_rank_0_and_its_job_is_reconciled_when_it_changes(
    reading: Readings,
) -> None:
    server, read = await following(reading, FakeServer(log=LINE % 1))
    assert read.latest(KEY, "p0").step == 1
    assert read.latest(KEY, "another") is None
    await read.more_reads(3)
    assert read.keys.empty()
    server.log = LINE % 2
    await read.keys.next()
    read.follow(Observed(job=JOB, pods=(rank0(running=False),)))
    num_logs = server.num("log")
    await minutes_pass()
    assert server.num("log") == num_logs


async def test_the_pod_that_replaces_that_of_rank_0_is_read_and_the_lost_one_is_not(reading: Readings) -> None:
    """The lost one stays as evidence."""
    replaced = JOB.status.model_copy(update={"replaced_pods": [ReplacedPod(rank=0, replacement=1)]})
    read = reading(FakeServer(log=LINE % 1))
    read.follow(
        Observed(job=replace(JOB, status=replaced), pods=(rank0("lost", running=False), rank0("new", replacement=1)))
    )
    await read.keys.next()
    assert read.latest(KEY, "lost") is None
    assert read.latest(KEY, "new").step == 1


async def test_a_gang_that_runs_again_is_read_soon_although_the_next_read_was_far_away(
    reading: Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a new pod; whether that has joined the ranks is in the log."""
    monkeypatch.setattr(progress_module, "pause_seconds", lambda *_: 3600.0)
    server, read = await following(reading, FakeServer(log=LINE % 1))
    waits = seen("p0")
    read.follow(waits)
    await minutes_pass()
    assert server.num("log") == 1
    for number in (1, 2):  # the second time, no status in between was seen
        runs = waits.job.status.model_copy(update={"running_since": f"2026-01-01T00:00:0{number}Z"})
        read.follow(replace(waits, job=replace(waits.job, status=runs)))
        read.follow(replace(waits, job=replace(waits.job, status=runs)))
        await read.more_reads(1)
        await minutes_pass()
        assert server.num("log") == 1 + number


async def test_a_log_that_is_to_be_read_again_while_it_is_read_is_read_after_that(
    reading: Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two reads at once the older text could come last."""
    monkeypatch.setattr(progress_module, "pause_seconds", lambda *_: 3600.0)
    server = FakeServer(log=LINE % 1)
    server.answer_seconds = 100.0
    read = reading(server)
    waits = seen("p0")
    read.follow(waits)
    await happens(lambda: server.num_open == 1)
    runs = waits.job.status.model_copy(update={"running_since": "2026-01-01T00:00:00Z"})
    read.follow(replace(waits, job=replace(waits.job, status=runs)))
    await read.more_reads(1)
    assert server.most_open == 1


async def test_few_logs_are_read_at_a_time(reading: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "MAX_PARALLEL", 3)
    server = FakeServer()
    server.answer_seconds = 3600.0
    read = reading(server)
    for number in range(30):
        read.follow(seen(f"p{number}", of=replace(JOB, name=f"j{number}")))
    await happens(lambda: server.num_open == 3)
    await minutes_pass()
    assert server.most_open == 3


async def test_an_interval_of_0_reads_nothing() -> None:
    server = FakeServer(log=LINE % 1)
    reader = ProgressReader(cast("Client", server), 0, Keys().put_nowait)
    running = asyncio.create_task(reader.run())
    reader.follow(seen("p0"))
    await minutes_pass()
    assert server.num("log") == 0
    running.cancel()


async def test_silence_is_a_log_that_can_be_read_and_has_nothing_new(reading: Readings) -> None:
    server = FakeServer(log=LINE % 1)
    read = reading(server)
    read.follow(seen("p0"))
    await happens(lambda: read.silence() > 50)
    assert read.reader.silent_seconds(KEY, "another") == 0

    server.log = UnavailableError("log", "the node does not answer")
    await read.more_reads(3)
    before = read.silence()
    await read.more_reads(4)
    assert read.silence() == before, "a log that cannot be read says nothing of the program"

    server.log = LINE % 2
    await happens(lambda: read.silence() < before)


def num_long_reads(server: FakeServer) -> int:
    return sum(lines > progress_module.TAIL_LINES for lines in server.tails)


async def test_few_long_reads_are_made_of_a_log_that_hides_its_progress(reading: Readings) -> None:
    server, read = await following(reading, FakeServer(log=LINE % 1))
    server.log = LINE % 2 + "other output\n" * 4000
    await read.more_reads(40)
    assert 1 <= num_long_reads(server) <= 5


async def test_long_reads_of_all_jobs_share_one_rate(reading: Readings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LONG_READ_PAUSE_SECONDS", 3600.0)
    server = FakeServer(log=LINE % 1 + "other output\n" * 100)
    read = reading(server)
    for number in range(20):
        read.follow(seen(f"p{number}", of=replace(JOB, name=f"j{number}")))
    await read.more_reads(40)
    assert num_long_reads(server) == 1


@pytest.mark.parametrize("text", ["other output\n" * 20, "failed to try resolving symlinks in path: no such file"])
async def test_a_part_of_a_log_without_progress_is_no_silence(reading: Readings, text: str) -> None:
    server, read = await following(reading, FakeServer(log=LINE % 1))
    server.log = text if text.startswith("failed") else LINE % 1 + text * 200
    await happens(lambda: read.silence() > 0 or server.num("log") > 3)
    before = read.silence()
    await read.more_reads(5)
    assert read.silence() == before

    server.log = LINE % 2 + "other output\n" * 100  # found in a longer piece
    await read.keys.next()
    assert read.latest(KEY, "p0").step == 2


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
