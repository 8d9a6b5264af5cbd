"""A request to stop is noticed, and ranks agree on where: ranks with clocks of their own, over an all-reduce with delay."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpjob_ranks import stop
from ddpjob_ranks.stop import StopAgreement
from support.fakes import Fake, fake

#: gloo over TCP within one data centre.
HOP_SECONDS = 50e-6
NUM_STEPS = 100


@dataclass
class Request(Fake):
    received: bool = False


@dataclass
class Question:
    """The largest values so far, who asked last, and how many have asked."""

    values: torch.Tensor
    asked_last: float = 0.0
    num_asked: int = 0

    def ask(self, values: torch.Tensor, now: float) -> None:
        self.values = torch.maximum(self.values, values)
        self.asked_last = max(self.asked_last, now)
        self.num_asked += 1


@dataclass(kw_only=True)
class World:
    """All ranks, and the questions that they have asked each other over a ring."""

    world_size: int
    hop_seconds: float = HOP_SECONDS
    clocks: list[float] = field(init=False)
    questions: list[Question] = field(default_factory=list)
    found: list[bool] = field(init=False)
    callers: Iterator[int] = field(init=False)
    ask_now: bool = field(init=False)

    def __post_init__(self) -> None:
        # While a rank waits, the others make their calls within it, each in four frames.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * self.world_size))
        self.clocks = [0.0] * self.world_size
        self.requests = [Request() for _ in range(self.world_size)]
        self.copy_due = [False] * self.world_size
        self.ranks = [
            StopAgreement(
                Member(self, rank),
                self.requests[rank],
                question_seconds=self.question_seconds,
                copy_due=lambda rank=rank: self.copy_due[rank],  # type: ignore[misc]
                clock=lambda rank=rank: self.clocks[rank],  # type: ignore[misc]
            )
            for rank in range(self.world_size)
        ]

    @property
    def question_seconds(self) -> float:
        return 2 * (self.world_size - 1) * self.hop_seconds

    def call(self, *, ask_now: bool = False) -> list[bool]:
        """What each rank finds at one point of the program."""
        self.found = [False] * self.world_size
        self.callers = iter(range(self.world_size))
        self.ask_now = ask_now
        while self.next_rank_calls():
            pass
        return self.found

    def next_rank_calls(self) -> bool:
        """One more rank comes to this point of the program; False if all have."""
        rank = next(self.callers, None)
        if rank is not None:
            self.found[rank] = self.ranks[rank].reached(ask_now=self.ask_now)
        return rank is not None

    def step(self, seconds: Sequence[float]) -> None:
        """Each rank computes for so long. On a GPU, whose work is queued, it does not wait for the others."""
        self.clocks = [clock + took for clock, took in zip(self.clocks, seconds, strict=True)]


@dataclass
class Member(Fake):
    """One rank's side of the group."""

    world: World
    rank: int
    num_asked: int = 0

    def begin_max(self, values: torch.Tensor) -> "Answer":
        if self.num_asked == len(self.world.questions):
            self.world.questions.append(Question(values))
        question = self.world.questions[self.num_asked]
        question.ask(values, self.world.clocks[self.rank])
        self.num_asked += 1
        return Answer(self, question, values)


@dataclass
class Answer:
    member: Member
    question: Question
    values: torch.Tensor

    def wait(self) -> None:
        world, rank = self.member.world, self.member.rank
        while self.question.num_asked < world.world_size:
            assert world.next_rank_calls(), "a rank waits for an answer that others have not asked for"
        self.values.copy_(self.question.values)
        world.clocks[rank] = max(world.clocks[rank], self.question.asked_last + world.question_seconds)


durations = st.floats(1e-4, 0.5)


@settings(deadline=None)
@given(data=st.data(), world_size=st.integers(1, 6), hop_seconds=st.sampled_from([1e-6, 1e-4, 1e-2]))
def test_all_ranks_stop_in_the_same_call_soon_after_any_request(data, world_size, hop_seconds):
    world = World(world_size=world_size, hop_seconds=hop_seconds)
    asked = data.draw(st.dictionaries(st.integers(0, world_size - 1), st.integers(0, 80), max_size=3))
    first = min(asked.values(), default=None)
    for number in range(80 + 2 * stop.MAX_INTERVAL + 1):
        for rank, at in asked.items():
            world.requests[rank].received |= at == number
        found = world.call(ask_now=data.draw(st.booleans()) if number % 7 == 0 else False)
        assert len(set(found)) == 1, "all ranks find the same"
        if found[0]:
            assert first is not None
            assert number >= first
            break
        assert first is None or number < first + 2 * stop.MAX_INTERVAL
        world.step(
            [data.draw(durations) for _ in range(world_size)]
            if number % 11 == 0
            else [0.01 * (1 + rank) for rank in range(world_size)]
        )
    assert all(world.call()) or first is None, "once it is yes, it is always yes"


def test_all_ranks_copy_after_the_same_call_once_each_of_them_is_ready():
    """Steps are shorter than a question, so that answers come later."""
    world = World(world_size=3, hop_seconds=1e-2)
    agreed = []
    for number in range(60):
        world.copy_due = [number >= 10, number >= 30, number >= 20]
        world.call()
        found = {rank.copy_agreed for rank in world.ranks}
        assert len(found) == 1, "all ranks find the same"
        agreed.append(found.pop())
        if agreed[-1]:
            break
        world.step([1e-3] * 3)
    assert 30 < len(agreed) <= 30 + 2 * stop.MAX_INTERVAL


def seconds_lost_per_step(world_size: int, *, step_seconds: float, num_steps: int = NUM_STEPS) -> float:
    """How much longer than its computation a step takes, with the ring's delays."""
    world = World(world_size=world_size)
    for _ in range(num_steps):
        world.call()
        world.step([step_seconds] * world_size)
    return max(world.clocks) / num_steps - step_seconds


@pytest.mark.parametrize("world_size", [2, 64, 256, 1024])
def test_the_agreement_costs_at_most_a_hundredth_of_a_step_whatever_the_number_of_ranks(monkeypatch, world_size):
    """Simulated, with steps of 10 ms: where the ring's delays are longer, they stay behind the computation."""
    cost = seconds_lost_per_step(world_size, step_seconds=0.01)
    monkeypatch.setattr(stop, "MAX_INTERVAL", 1)
    cost_of_each_step = seconds_lost_per_step(world_size, step_seconds=0.01)
    print(f"{world_size} ranks: {cost * 1e3:.2f} ms a step; {cost_of_each_step * 1e3:.2f} ms if asked in each step")
    ring_seconds = 2 * (world_size - 1) * HOP_SECONDS
    first_two = 2 * ring_seconds / NUM_STEPS  # are waited for, as the time of a step is not known yet
    assert cost <= max(first_two, 0.01 / stop.WAIT_RATIO) + 1e-9
    assert (cost_of_each_step > 0.001) == (ring_seconds > 0.01)


@pytest.mark.parametrize(("question_seconds", "calls"), [(0.01, 1), (0.03, 2)])
def test_a_request_is_honoured_after_the_step_it_arrives_in_where_steps_are_slow(question_seconds, calls):
    world = World(world_size=4, hop_seconds=question_seconds / 6)
    for _ in range(5):
        world.step([2.0] * 4)
        world.call()
    for _ in range(50):
        world.step([0.001] * 4)
        world.call(ask_now=True)
    world.requests[2].received = True
    for number in range(1, calls + 1):
        world.step([2.0] * 4)
        assert world.call() == [number == calls] * 4


@pytest.mark.parametrize(
    ("question_seconds", "seconds_per_call", "calls"),
    [
        (0.0002, 0.01, 1),
        (0.025, 0.1, 1),
        (0.025, 0.01, 5),
        (0.1, 0.001, stop.MAX_INTERVAL),
        (0.0, 0.0, 1),
        (0.1, 0.0, 16),
    ],
)
def test_ranks_ask_as_seldom_as_an_answer_takes(question_seconds, seconds_per_call, calls):
    assert stop.interval(question_seconds, seconds_per_call) == calls


#: Threads that call Python functions all the time. The main thread waits without the interpreter's lock, as in a
#: collective, so its own signal handler does not run.
BUSY = """
import os, signal, sys, threading
from pathlib import Path
from ddpjob_ranks.stop import StopRequest

done = threading.Event()

def work():
    while not done.is_set():
        Path("a") / "b" / "c"

def end():
    sys.stdin.read()
    done.set()

request = StopRequest()
threads = [threading.Thread(target=target) for target in (work, work, end)]
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
assert request.received
child = os.fork()
if child == 0:
    os._exit(signal.set_wakeup_fd(-1) != -1)
assert os.waitpid(child, 0)[1] == 0, "a signal of the child would wake the thread of this process"
request.ignore()
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_signals_show_the_stacks_and_never_end_a_process_whose_threads_run_python(tmp_path) -> None:
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", BUSY],
            env={"PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while process.poll() is None and errors.read_text().count("SIGTERM received") < 10:
            process.send_signal(signal.SIGTERM)
            assert time.monotonic() < deadline, f"60 s passed; expected 10 dumps of stacks in\n{errors.read_text()}"
        process.stdin.close()
        assert process.wait(timeout=60) == 0, errors.read_text()[-2000:]

    assert "ddpjob stacks: SIGTERM received\nthread MainThread\n" in errors.read_text()
    assert "in work\n" in errors.read_text()


def test_the_first_question_which_also_connects_the_ranks_is_not_timed(monkeypatch):
    now, asked = [0.0], list[Any]()

    def wait() -> None:
        now[0] += 5.0 if len(asked) == 1 else 0.01

    gang = fake(begin_max=lambda values: asked.append(values) or fake(wait=wait))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    agreement = StopAgreement(gang, Request(), clock=lambda: now[0])
    asked.clear()
    for _ in range(10):
        now[0] += 1.0
        agreement.reached()
    assert len(asked) == 10, "a question takes a hundredth of a step, so that ranks ask in each step"
