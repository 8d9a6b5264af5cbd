"""Watchdogs of several ranks in one process, over one store; the end of a process is noted instead of carried out."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from ddpjob_ranks import contract
from ddpjob_ranks.launch import rendezvous
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch import board
from ddpjob_ranks.watch.collectives import Collectives, num_started
from ddpjob_ranks.watch.diagnosis import RankStatus
from ddpjob_ranks.watch.idleness import Action, Timing
from ddpjob_ranks.watch.process_end import FLIGHT_RECORDER
from ddpjob_ranks.watch.timeline import Phase, Timeline
from ddpjob_ranks.watch.watchdog import Watchdog
from support.workers import worker

DEADLINE_SECONDS = 60.0
#: A rank whose first step is done is late soon, and before it never.
LIMITS = Limits(first_step_seconds=DEADLINE_SECONDS, step_seconds=0.1)
pytestmark = pytest.mark.filterwarnings("ignore:Exception in thread watchdog")  # SystemExit, see `Rank`


class Patient(Timing):
    """Looks often, and waits as long as a busy machine may need."""

    tick_seconds = 0.02
    search_seconds = DEADLINE_SECONDS
    parting_seconds = 0.0


PATIENT = Patient(answer_seconds=DEADLINE_SECONDS, loss_seconds=DEADLINE_SECONDS)
#: Where an answer does not come.
IMPATIENT = Patient(answer_seconds=0.1, loss_seconds=0.1)


#: The ranks of the test that runs.
BEGUN: list["Rank"] = []


@pytest.fixture(autouse=True)
def all_leave() -> Iterator[None]:
    """At the end of the interpreter a thread that is in the store would abort the process."""
    yield
    while BEGUN:  # the first rank, which waits for the others, comes last
        with BEGUN.pop():
            pass


class Gpu(Collectives):
    """As if a GPU ran the collectives."""

    aborted = False

    def on_gpu(self) -> bool:
        return True

    def num_started_by_gpu(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True


class Rank(Watchdog):
    """A rank with its watchdog. Its `message` is the one that the process would end with."""

    def __init__(
        self, rank: int, store: Store, *, world_size: int, timing: Timing = PATIENT, collectives: Collectives
    ) -> None:
        self.timeline, self.collectives, self.message = Timeline(), collectives, ""
        super().__init__(LIMITS, self.timeline, timing=timing, collectives=collectives, end=self.end)
        before = set(threading.enumerate())
        self.watch(store, worker(rank, world_size))
        self._threads = set(threading.enumerate()) - before
        BEGUN.append(self)

    def end(self, message: str, **_: object) -> NoReturn:
        self.message = message
        raise SystemExit

    def stand_still(self, phase: Phase) -> None:
        """Make no progress from here on, in a phase after the first step."""
        self.timeline.step_done(0, num_samples=1)
        self.timeline.enter(phase)

    @property
    def is_watched(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)


def ranks(
    world_size: int,
    *,
    timing: Timing = PATIENT,
    collectives: type[Collectives] = Collectives,
    store: Store | None = None,
) -> list[Rank]:
    store = store or HashStore()
    return [
        Rank(rank, store, world_size=world_size, timing=timing, collectives=collectives()) for rank in range(world_size)
    ]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def moving(rank: Rank, *, until: Callable[[], bool]) -> None:
    """The rank makes progress until the condition holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not until():
        assert time.monotonic() < deadline
        rank.timeline.moved()
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("phase", "num_steps", "seconds"),
    [(Phase.DATA, 0, 600), (Phase.DATA, 1, 300), (Phase.EVALUATE, 1, 900), (Phase.CHECKPOINT, 1, 900)],
)
def test_a_rank_asks_the_others_once_it_has_made_no_progress_for_the_limit_of_its_place(
    monkeypatch, phase, num_steps, seconds
):
    now = [1000.0]
    monkeypatch.setattr("ddpjob_ranks.watch.watchdog.time.monotonic", lambda: now[0])
    timeline = Timeline()
    limits = Limits(first_step_seconds=600, step_seconds=300)
    watched = Watchdog(limits, timeline)

    def seconds_until_it_asks(at_most: float) -> float | None:
        began = now[0]
        while now[0] < began + at_most:
            now[0] += Timing.of(limits).tick_seconds
            if watched.look() is Action.ASK:
                return now[0] - began
        return None

    timeline.begin_training(step=0)
    for step in range(num_steps):
        timeline.step_done(step + 1, num_samples=1)
    timeline.enter(phase)
    for _ in range(2):  # batches of an evaluation, or pieces of a checkpoint
        assert seconds_until_it_asks(seconds - 100) is None
        timeline.moved()
    assert seconds_until_it_asks(2 * seconds) == seconds


def test_ranks_that_all_wait_end_with_the_same_diagnosis():
    one, other = ranks(2)
    one.stand_still(Phase.DATA)
    other.stand_still(Phase.BACKWARD)
    wait_until(lambda: bool(one.message and other.message))
    assert one.message == other.message
    assert one.message.startswith("rank 0 (host ")
    assert " is late: in data after 0 steps; rank 1 waits in backward" in one.message


def test_while_one_rank_makes_progress_the_others_wait_however_long(monkeypatch):
    monkeypatch.setattr(rendezvous, "LISTEN", timedelta(seconds=0.2))  # as if days had passed
    working, waiting = ranks(2)
    waiting.stand_still(Phase.BACKWARD)
    moving(working, until=lambda: waiting.num_rounds >= 3)
    assert (working.message, waiting.message) == ("", "")
    working.stand_still(Phase.DATA)
    wait_until(lambda: bool(working.message and waiting.message))


def test_a_round_without_a_decision_is_followed_by_another_one(monkeypatch):
    """Its coordinator was stopped after it had offered itself."""
    coordinates = board.Board.coordinates
    monkeypatch.setattr(board.Board, "coordinates", lambda self, number: number > 0 and coordinates(self, number))
    (rank,) = ranks(1, timing=IMPATIENT)
    rank.stand_still(Phase.DATA)
    wait_until(lambda: bool(rank.message))
    assert " makes no progress: in data after 0 steps for " in rank.message
    assert rank.num_rounds == 1


def test_a_decision_that_comes_too_late_is_the_decision_of_no_rank():
    store = HashStore()
    coordinator, waiting = (board.Board(store, rank=rank, world_size=2, timing=PATIENT) for rank in range(2))
    assert waiting.decision(0, 0.01) == board.GO_ON
    coordinator.decide(0, "rank 1 is late")
    assert coordinator.decision(0, 0.01) == board.GO_ON


def test_a_store_that_does_not_respond_ends_the_ranks_that_wait(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "host-0")
    monkeypatch.setattr(board.Board, "answer", lambda *_: threading.Event().wait())  # as of a server that is stopped
    (rank,) = ranks(1, timing=IMPATIENT)
    rank.stand_still(Phase.BACKWARD)
    wait_until(lambda: bool(rank.message))
    assert rank.message.startswith(
        "rank 0 (host host-0) does not respond, which holds the store that all ranks use; rank 0 "
    )


def test_a_rank_that_left_in_order_is_not_waited_for():
    waiting, left = ranks(2, timing=IMPATIENT)
    with left:
        pass
    assert not left.is_watched
    waiting.stand_still(Phase.BACKWARD)
    wait_until(lambda: bool(waiting.message))
    assert waiting.message.startswith("rank 0 (host ")
    assert " makes no progress: in backward" in waiting.message


def test_the_rank_whose_process_holds_the_store_leaves_last():
    """torch prints a stack of 20 lines on each rank that still waits when the store ends."""
    holder, other = ranks(2)
    others_that_waited: list[bool] = []

    def leave() -> None:
        with holder:
            pass
        others_that_waited.append(other.is_watched)

    leaving = threading.Thread(target=leave)
    leaving.start()
    wait_until(lambda: not holder.is_watched)
    with other:
        pass
    leaving.join(DEADLINE_SECONDS)
    assert others_that_waited == [False]


def test_no_thread_of_a_rank_is_left_at_its_end_although_the_store_is_gone():
    """Within the store, at the end of the interpreter, it would abort the process."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    (rank,) = ranks(1, store=TCPStore("127.0.0.1", server.port))
    del server
    with rank:
        pass
    assert not rank.is_watched


def test_a_rank_that_lost_another_one_learns_its_cause():
    failing, losing, unaware = ranks(3)
    failing.report_failure("OSError: the disk of rank 0 failed")
    assert losing.find_lost_rank() == "rank 0 ended: OSError: the disk of rank 0 failed"
    wait_until(lambda: unaware.num_rounds == 1)
    assert unaware.message == ""


def test_the_failure_of_a_rank_aborts_the_collectives_of_the_others_on_gpus():
    failing, *others = everyone = ranks(3, collectives=Gpu)
    failing.report_failure("OSError: the disk of rank 0 failed")
    wait_until(lambda: all(rank.num_rounds == 1 for rank in others))
    assert [cast("Gpu", rank.collectives).aborted for rank in everyone] == [False, True, True]
    assert [rank.aborted_collectives for rank in everyone] == [False, True, True]


@pytest.mark.parametrize(("last_started", "last_completed", "started"), [(3, 2, 3), (-1, 2, 2), (-1, -1, 0)])
def test_the_flight_recorder_says_how_many_collectives_a_gpu_has_started(last_started, last_completed, started):
    status = {"last_started_collective": str(last_started), "last_completed_collective": str(last_completed)}
    assert num_started(json.dumps({"pg_status": {"0": status}}).encode()) == started


def test_the_flight_recorder_of_this_torch_can_be_read():
    assert num_started(cast("Any", c10d)._dump_nccl_trace_json(includeCollectives=False)) == 0


def test_a_rank_that_lost_a_silent_one_names_it():
    store = HashStore()
    silent = RankStatus(
        rank=0,
        host="host-0",
        step=3,
        phase=Phase.DATA,
        idle_seconds=0,
        limit_seconds=9,
        reported_at_unix_seconds=0,
        num_collectives=0,
    )
    board.Board(store, rank=0, world_size=2, timing=PATIENT).publish(silent)
    losing = Rank(1, store, world_size=2, timing=IMPATIENT, collectives=Collectives())
    assert losing.find_lost_rank().startswith("rank 0 (host host-0)")


def test_a_rank_that_lost_another_one_does_not_leave_the_others_waiting_for_a_decision(monkeypatch):
    monkeypatch.setattr(board.Board, "coordinates", lambda *_: False)
    _, losing, unaware = ranks(3)
    losing.find_lost_rank()
    wait_until(lambda: unaware.num_rounds == 1)


def test_all_that_lost_the_same_rank_report_the_same_cause():
    everyone = ranks(4)
    everyone[2].report_failure("OSError: the disk of rank 2 failed")
    found: list[str] = []
    threads = [threading.Thread(target=lambda rank=rank: found.append(rank.find_lost_rank())) for rank in everyone[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == 2 * ["rank 2 ended: OSError: the disk of rank 2 failed"]


@pytest.mark.filterwarnings(
    "error::pytest.PytestUnhandledThreadExceptionWarning"
)  # an exception in a thread is reported as a warning
def test_before_the_ranks_have_met_no_rank_can_be_asked():
    watched = Watchdog(LIMITS, Timeline())
    watched.report_failure("the disk failed")
    assert watched.find_lost_rank() == ""


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_readme_names_the_files_of_the_flight_recorder(backend):
    readme = Path(__file__).parents[3] / "trainer/README.md"
    assert f"`{FLIGHT_RECORDER.format(backend=backend, rank='<rank>')}`" in readme.read_text(encoding="utf-8")


BLOCKED = """
import threading
from ddpjob_ranks import generation
from ddpjob_ranks.launch import launcher
from ddpjob_ranks.watch.process_end import end_process
launcher.SAVE_SECONDS = 0.1
memory = dict(state_memory=-1, own_memory=-1, stores=-1)
mine = generation.Generation(number=1, pipe=-1, before_exit=threading.Event().wait, **memory)
generation._current.append(mine)
end_process("hung", rank=0, status=str, silence_seconds=0.1)
"""


def test_a_rank_that_hangs_while_it_saves_its_state_ends_too():
    """Such as in the state_dict of a part of the user's, which waits for what the main thread holds."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], check=False, timeout=120)
    assert done.returncode == contract.EXIT_HUNG
