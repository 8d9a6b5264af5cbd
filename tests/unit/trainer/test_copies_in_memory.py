"""The copies of the state in memory that ranks on GPUs make while they train; here on CPUs, without a transfer."""

import os
import time
from types import SimpleNamespace

import pytest
import torch

from ddpjob_ranks import contract, slots
from ddpjob_ranks.generation import Generation
from ddpjob_session import run
from ddpjob_session.memory import periodic
from ddpjob_session.memory.periodic import PeriodicMemory
from ddpjob_session.memory.state_memory import MARGIN_BYTES, STATE_SLOTS, newest_step
from ddpjob_session.report import Reporter
from ddpjob_session.state import State, from_bytes

MIB = 2**20
DEADLINE_SECONDS = 30.0


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        ([({7, 9}, {7, 9}), (set(), {7, 9})], 9),
        ([({7, 9}, {7, 9}), (set(), {7})], 7),
        ([({7}, None), ({9}, None)], 9),
        ([({9}, set()), ({9}, None)], None),
        ([(set(), {9}), (set(), {9})], None),
    ],
    ids=[
        "all have all",
        "one lacks the newest",
        "no rank knows anything alone",
        "a lost pod knew something",
        "no state",
    ],
)
def test_the_newest_state_is_taken_that_every_rank_can_complete(offers, expected):
    assert newest_step(offers) == expected


class Alone:
    """A gang of one rank."""

    rank, world_size, device = 0, 1, torch.device("cpu")

    def all_gather(self, value):
        return [value]

    def broadcast_bytes(self, payload, *_, **__):
        return payload


@pytest.fixture
def generation():
    node, own = (os.memfd_create(name) for name in ("node", "own"))
    yield Generation(number=2, pipe=-1, state_memory=node, own_memory=own, stores=-1)
    os.close(node)
    os.close(own)


@pytest.fixture
def state():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False), torch.nn.BatchNorm1d(1))  # 4 MiB
    return State({"model": model}, program="this test")


@pytest.fixture
def memory(generation, state, monkeypatch):
    monkeypatch.setattr(periodic, "PAUSE_SECONDS", 0.0)
    return PeriodicMemory(generation, state, Alone(), keep_generators=True)


def copied(memory: PeriodicMemory, state: State, *steps: int) -> None:
    """Copy the state, whose first parameter is the number of the step, after each of these steps."""
    for step in steps:
        state.step = step
        with torch.no_grad():
            for tensor in (*state.parts["model"].parameters(), *state.parts["model"].buffers()):
                tensor.fill_(step)
        memory.copy()
        wait_until_written(memory)


def wait_until_written(memory: PeriodicMemory) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not memory.can_copy():
        assert time.monotonic() < deadline, "the copy is not written"
        time.sleep(0.001)


def test_the_last_two_copies_are_kept_and_the_newest_is_restored(memory, state, generation):
    memory.hold([], restored=False)
    copied(memory, state, 4, 5, 9)
    assert {slots.step_of(generation.state_memory, slot) for slot in STATE_SLOTS} == {5, 9}
    copied_weight = from_bytes(slots.read(generation.state_memory, 0))["model"]["0.weight"]
    assert torch.equal(copied_weight, torch.full_like(copied_weight, 9.0))
    torch.manual_seed(3)
    assert memory.restore(lambda: None)
    model = state.parts["model"]
    assert (state.step, model[0].weight[0, 0].item(), model[1].running_mean.item()) == (9, 9.0, 9.0)
    assert not memory.has_last_step, "steps after the copy are not known"
    assert state.random is not None


def test_a_copy_that_is_older_than_the_newest_checkpoint_is_not_taken(memory, state):
    memory.hold([], restored=False)
    copied(memory, state, 9)
    assert not memory.restore(lambda: None, at_least=10)
    assert memory.restore(lambda: None, at_least=9)


def test_rank_0_asks_for_the_newest_checkpoint_before_it_takes_a_copy(memory, state, generation, monkeypatch, tmp_path):
    memory.hold([], restored=False)
    copied(memory, state, 9)
    asked = []
    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(tmp_path))
    monkeypatch.setattr("ddpjob_ranks.generation._current", [generation])
    monkeypatch.setattr(run.Run, "_memory_of", lambda *_, **__: memory)
    monkeypatch.setattr(
        "ddpjob_session.checkpoints.folder.CheckpointFolder.newest_step", lambda _: asked.append(1) or 10
    )
    resumed = run.Run(Alone(), Reporter(enabled=False))
    resumed.restore(state, keep=3)
    assert (asked, resumed.resumed) == ([1], False)


def test_a_copy_that_other_ranks_lack_is_forgotten(memory, state, generation):
    """The next one would take the place of one that all have."""
    memory.hold([], restored=False)
    copied(memory, state, 5, 9)
    state.step = 5
    memory.hold([], restored=True)
    for kept in (generation.state_memory, generation.own_memory):
        assert {slots.step_of(kept, slot) for slot in STATE_SLOTS} == {5, slots.NO_STEP}


def test_copies_that_are_not_restored_are_forgotten(memory, state, generation):
    memory.hold([], restored=False)
    copied(memory, state, 5)
    memory.hold([], restored=False)
    for kept in (generation.state_memory, generation.own_memory):
        assert {slots.step_of(kept, slot) for slot in STATE_SLOTS} == {slots.NO_STEP}


def test_other_ranks_of_a_node_copy_only_what_they_alone_know(generation, state, monkeypatch):
    monkeypatch.setattr(periodic, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv(contract.LOCAL_RANK, "1")
    gang = SimpleNamespace(rank=1, device=torch.device("cpu"))
    memory = PeriodicMemory(generation, state, gang, keep_generators=True)
    memory.hold([], restored=False)
    copied(memory, state, 5)
    steps = [slots.step_of(kept, 0) for kept in (generation.state_memory, generation.own_memory)]
    assert steps == [slots.NO_STEP, 5]


@pytest.mark.parametrize(("left", "fits"), [(13 * MIB, True), (11 * MIB, False)])
def test_copies_that_do_not_fit_are_not_made_and_that_is_reported(memory, monkeypatch, capsys, left, fits):
    """Three of 4 MiB: one on its way, and two that are kept."""
    monkeypatch.setattr("ddpjob_session.memory.state_memory.available_bytes", lambda: left + MARGIN_BYTES)
    memory.hold([], restored=False)
    refusal = "rank 0: its state is not kept in memory: it needs 12 MiB, and the memory limit"
    assert (memory.can_copy(), refusal in capsys.readouterr().err) == (fits, not fits)


def test_a_copy_that_cannot_be_written_is_the_last_and_training_continues(memory, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError("no space left")

    memory.hold([], restored=False)
    monkeypatch.setattr(torch, "save", full)
    monkeypatch.setattr(periodic.threading, "Thread", AtOnce)
    memory.copy()
    assert not memory.can_copy()
    assert "rank 0: its state is not kept in memory: no space left" in capsys.readouterr().err


class AtOnce:
    """A thread that does its work in `start`."""

    def __init__(self, *, target, args, **_: object):
        self.start = lambda: target(*args)


def test_a_large_state_is_copied_less_often(memory, monkeypatch):
    """Copies that take the GPU 0.1 s, each 20 s."""
    monkeypatch.setattr(periodic.threading, "Thread", AtOnce)
    monkeypatch.setattr(memory._copy, "wait", lambda: 0.1)
    now = [1000.0]
    monkeypatch.setattr(periodic.time, "monotonic", lambda: now[0])
    memory.hold([], restored=False)
    memory.copy()
    found = []
    for now[0] in (1000.0, 1019.0, 1021.0):
        found.append(memory.can_copy())
    assert found == [False, False, True]
