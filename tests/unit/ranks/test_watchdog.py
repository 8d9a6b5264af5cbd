"""Watchdogs of several ranks in one process, over one store; the end of a process is noted instead of carried out."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ddpjob_ranks import contract
from ddpjob_ranks.launch import rendezvous
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch import board
from ddpjob_ranks.watch.idleness import Action, Timing
from ddpjob_ranks.watch.timeline import Phase, Timeline
from ddpjob_ranks.watch.watchdog import FLIGHT_RECORDER, Watchdog, num_started
from support.workers import worker

LIMITS = Limits(first_step_seconds=0.5, step_seconds=0.5)
DEADLINE_SECONDS = 60.0
pytestmark = pytest.mark.filterwarnings("ignore:Exception in thread watchdog")  # SystemExit, see `Rank`


class Rank(Watchdog):
    """A rank with its watchdog. Its `end` is the message that the process would end with."""

    def __init__(self, rank: int, world_size: int, store: dist.Store) -> None:
        self.timeline = Timeline()
        super().__init__(LIMITS, self.timeline)
        self.end = ""
        self.watch(store, worker(rank, world_size))

    def _end(self, message: str, **_: object) -> NoReturn:
        self.end = message
        self._ending.set()
        raise SystemExit


def ranks(world_size: int) -> list[Rank]:
    store = dist.HashStore()
    return [Rank(rank, world_size, store) for rank in range(world_size)]


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
    watchdog = Watchdog(Limits(first_step_seconds=600, step_seconds=300), timeline)

    def seconds_until_it_asks(at_most: float) -> float | None:
        began = now[0]
        while now[0] < began + at_most:
            now[0] += watchdog._timing.tick_seconds
            if watchdog._look() is Action.ASK:
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
    one.timeline.enter(Phase.DATA)
    other.timeline.enter(Phase.BACKWARD)
    wait_until(lambda: bool(one.end and other.end))
    assert one.end == other.end
    assert one.end.startswith("rank 0 (host ")
    assert " is late: in data after 0 steps; rank 1 waits in backward" in one.end


def test_while_one_rank_makes_progress_the_others_wait_however_long(monkeypatch):
    monkeypatch.setattr(rendezvous, "LISTEN", timedelta(seconds=0.2))  # as if days had passed
    working, waiting = ranks(2)
    waiting.timeline.enter(Phase.BACKWARD)
    moving(working, until=lambda: waiting._round >= 3)
    assert (working.end, waiting.end) == ("", "")
    working.timeline.enter(Phase.DATA)
    wait_until(lambda: bool(working.end and waiting.end))


def test_a_round_without_a_decision_is_followed_by_another_one(monkeypatch):
    """Its coordinator was stopped after it had offered itself."""
    coordinates = board.Board.coordinates
    monkeypatch.setattr(board.Board, "coordinates", lambda self, number: number > 0 and coordinates(self, number))
    (rank,) = ranks(1)
    rank.timeline.enter(Phase.DATA)
    wait_until(lambda: bool(rank.end))
    assert " makes no progress: in data after 0 steps for " in rank.end
    assert rank._round == 1


def test_a_decision_that_comes_too_late_is_the_decision_of_no_rank():
    store = dist.HashStore()
    coordinator, waiting = (board.Board(store, rank=rank, world_size=2, timing=Timing.of(LIMITS)) for rank in range(2))
    assert waiting.decision(0, 0.01) == board.GO_ON
    coordinator.decide(0, "rank 1 is late")
    assert coordinator.decision(0, 0.01) == board.GO_ON


def test_a_store_that_does_not_respond_ends_the_ranks_that_wait(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "host-0")
    monkeypatch.setattr(board.Board, "answer", lambda *_: threading.Event().wait())  # as of a server that is stopped
    (rank,) = ranks(1)
    rank.timeline.enter(Phase.BACKWARD)
    wait_until(lambda: bool(rank.end))
    assert rank.end.startswith(
        "rank 0 (host host-0) does not respond, which holds the store that all ranks use; rank 0 "
    )


def test_a_rank_that_left_in_order_is_not_waited_for():
    waiting, left = ranks(2)
    with left:
        pass
    assert not left._listener.is_alive()
    waiting.timeline.enter(Phase.BACKWARD)
    wait_until(lambda: bool(waiting.end))
    assert waiting.end.startswith("rank 0 (host ")
    assert " makes no progress: in backward" in waiting.end


def test_the_rank_whose_process_holds_the_store_leaves_last():
    """torch prints a stack of 20 lines on each rank that still waits when the store ends."""
    holder, other = ranks(2)
    holder._timing = Timing.of(Limits(first_step_seconds=DEADLINE_SECONDS, step_seconds=DEADLINE_SECONDS))
    others_that_waited: list[bool] = []

    def leave() -> None:
        with holder:
            pass
        others_that_waited.append(other._listener.is_alive() or other._monitoring.is_alive())

    leaving = threading.Thread(target=leave)
    leaving.start()
    wait_until(lambda: not holder._listener.is_alive())
    with other:
        pass
    leaving.join(DEADLINE_SECONDS)
    assert others_that_waited == [False]


def test_no_thread_of_a_rank_is_left_at_its_end_although_the_store_is_gone(monkeypatch):
    """Within the store, at the end of the interpreter, it would abort the process."""
    (rank,) = ranks(1)

    def gone(*_: object) -> NoReturn:
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(rank, "_publish", gone)
    closing = threading.Timer(0.3, rank._board.close, (rank._round,))  # what the listener waits for
    closing.start()
    rank.__exit__(None, None, None)
    assert not rank._listener.is_alive()
    assert not rank._monitoring.is_alive()


def test_a_rank_that_lost_another_one_learns_its_cause():
    failing, losing, unaware = ranks(3)
    failing.report_failure("OSError: the disk of rank 0 failed")
    assert losing.find_lost_rank() == "rank 0 ended: OSError: the disk of rank 0 failed"
    wait_until(lambda: unaware._round == 1)
    assert unaware.end == ""


def test_the_failure_of_a_rank_aborts_the_collectives_of_the_others_on_gpus(monkeypatch):
    aborted: list[Rank] = []
    monkeypatch.setattr(
        Rank, "_nccl_backends", lambda rank: [SimpleNamespace(abort=lambda: aborted.append(rank))], raising=False
    )
    failing, *others = ranks(3)
    failing.report_failure("OSError: the disk of rank 0 failed")
    wait_until(lambda: all(rank._round == 1 for rank in others))
    assert sorted(rank._rank for rank in aborted) == [1, 2]
    assert [rank.aborted_collectives for rank in (failing, *others)] == [False, True, True]


@pytest.mark.parametrize(("last_started", "last_completed", "started"), [(3, 2, 3), (-1, 2, 2), (-1, -1, 0)])
def test_the_flight_recorder_says_how_many_collectives_a_gpu_has_started(last_started, last_completed, started):
    status = {"last_started_collective": str(last_started), "last_completed_collective": str(last_completed)}
    assert num_started(json.dumps({"pg_status": {"0": status}}).encode()) == started


def test_the_flight_recorder_of_this_torch_can_be_read():
    assert num_started(c10d._dump_nccl_trace_json(includeCollectives=False)) == 0


def test_a_rank_that_lost_a_silent_one_names_it():
    silent, losing, _ = ranks(3)
    silent._take_part = lambda *_: threading.Event().wait()
    assert losing.find_lost_rank().startswith("rank 0 (host ")


def test_a_rank_that_lost_another_one_does_not_leave_the_others_waiting_for_a_decision(monkeypatch):
    monkeypatch.setattr(board.Board, "coordinates", lambda *_: False)
    monkeypatch.setattr(Timing, "decision_seconds", 2 * DEADLINE_SECONDS)
    _, losing, unaware = ranks(3)
    losing.find_lost_rank()
    wait_until(lambda: unaware._round == 1)


def test_all_that_lost_the_same_rank_report_the_same_cause(monkeypatch):
    monkeypatch.setattr("ddpjob_ranks.watch.watchdog.LOSS_SECONDS", 4.0)  # threads of a busy machine
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
    watchdog = Watchdog(LIMITS, Timeline())
    watchdog.report_failure("the disk failed")
    assert watchdog.find_lost_rank() == ""


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_readme_names_the_files_of_the_flight_recorder(backend):
    readme = Path(__file__).parents[3] / "trainer/README.md"
    assert f"`{FLIGHT_RECORDER.format(backend=backend, rank='<rank>')}`" in readme.read_text(encoding="utf-8")


BLOCKED = """
import threading
from ddpjob_ranks import generation
from ddpjob_ranks.launch import launcher
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch.timeline import Timeline
from ddpjob_ranks.watch.watchdog import Watchdog
launcher.SAVE_SECONDS = 0.1
memory = dict(state_memory=-1, own_memory=-1, stores=-1)
mine = generation.Generation(number=1, pipe=-1, before_exit=threading.Event().wait, **memory)
generation._current.append(mine)
watchdog = Watchdog(Limits(first_step_seconds=0.1, step_seconds=0.1), Timeline())
watchdog._end("hung")
"""


def test_a_rank_that_hangs_while_it_saves_its_state_ends_too():
    """Such as in the state_dict of a part of the user's, which waits for what the main thread holds."""
    done = subprocess.run([sys.executable, "-c", BLOCKED], check=False, timeout=120)
    assert done.returncode == contract.EXIT_HUNG
