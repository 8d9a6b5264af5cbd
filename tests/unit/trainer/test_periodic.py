"""The copies of the state in memory that ranks on GPUs make while they train; on CPUs without a transfer."""

import datetime
import os
import threading
import time
from typing import Any

import pytest
import torch

from ddpjob_ranks import contract, slots
from ddpjob_ranks.generation import FREE_MEMORY_SLOT, Generation
from ddpjob_session import run
from ddpjob_session.checkpoints.snapshot import HostCopy
from ddpjob_session.memory import periodic
from ddpjob_session.memory.periodic import PeriodicMemory
from ddpjob_session.memory.state_memory import MARGIN_BYTES, STATE_SLOTS, newest_step
from ddpjob_session.report import Reporter
from ddpjob_session.state import State, from_bytes
from support.devices import on_each_device
from support.fakes import Fake, fake
from support.saved_states import restored

MIB = 2**20
CPU = torch.device("cpu")
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


class Alone(Fake):
    """A gang of one rank."""

    rank, world_size = 0, 1

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device

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
    state = State({"model": model}, program="this test")
    state.keeps_generators = True
    return state


@pytest.fixture
def memory(generation, state, monkeypatch):
    monkeypatch.setattr(periodic, "PAUSE_SECONDS", 0.0)
    return PeriodicMemory(generation, state, Alone(), HostCopy(CPU))


def copied(memory: PeriodicMemory, state: State, *steps: int) -> None:
    """Copy the state, whose first parameter is the number of the step, after each of these steps."""
    for step in steps:
        state.step = step
        with torch.no_grad():
            model: Any = state.parts["model"]
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.fill_(step)
        memory.begin_copy()
        wait_until_written(memory)


def wait_until_written(memory: PeriodicMemory) -> None:
    memory.await_copy(DEADLINE_SECONDS)
    assert memory.is_due(), "the copy is not written"


@on_each_device
def test_the_last_two_copies_are_kept_and_the_newest_is_restored(state, generation, monkeypatch, device):
    monkeypatch.setattr(periodic, "PAUSE_SECONDS", 0.0)
    state.parts["model"].to(device)
    memory = PeriodicMemory(generation, state, Alone(device), HostCopy(device))
    memory.hold([], restored=False)
    copied(memory, state, 4, 5, 9)
    assert {slots.step_of(generation.state_memory, slot) for slot in STATE_SLOTS} == {5, 9}
    copied_weight = from_bytes(bytes(slots.read(generation.state_memory, 0)))["model"]["0.weight"]
    assert torch.equal(copied_weight, torch.full_like(copied_weight, 9.0))
    torch.manual_seed(3)
    assert restored(memory, lambda: None)
    model = state.parts["model"]
    assert (state.step, model[0].weight[0, 0].item(), model[1].running_mean.item()) == (9, 9.0, 9.0)
    assert not memory.has_last_step, "steps after the copy are not known"
    assert state.random is not None


def test_a_copy_that_is_older_than_the_newest_checkpoint_is_not_taken(memory, state):
    memory.hold([], restored=False)
    copied(memory, state, 9)
    assert not restored(memory, lambda: None, at_least=10)
    assert restored(memory, lambda: None, at_least=9)


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
    resumed.restore(state)
    assert (asked, resumed.resumed) == ([1], False)


def test_a_copy_that_other_ranks_lack_is_forgotten(memory, state, generation):
    """The next one would take the place of one that all have."""
    memory.hold([], restored=False)
    copied(memory, state, 5, 9)
    state.step = 5
    memory.hold([], restored=True)
    for kept in (generation.state_memory, generation.own_memory):
        assert {slots.step_of(kept, slot) for slot in STATE_SLOTS} == {5, slots.NO_STEP}


def test_copies_that_are_not_restored_are_forgotten_and_nothing_else(memory, state, generation):
    slots.mark(generation.own_memory, 79 * 2**30, FREE_MEMORY_SLOT)
    memory.hold([], restored=False)
    copied(memory, state, 5)
    memory.hold([], restored=False)
    for kept in (generation.state_memory, generation.own_memory):
        assert {slots.step_of(kept, slot) for slot in STATE_SLOTS} == {slots.NO_STEP}
    assert slots.step_of(generation.own_memory, FREE_MEMORY_SLOT) == 79 * 2**30


def test_other_ranks_of_a_node_copy_only_what_they_alone_know(generation, state, monkeypatch):
    monkeypatch.setattr(periodic, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv(contract.LOCAL_RANK, "1")
    gang = fake(rank=1, device=CPU)
    memory = PeriodicMemory(generation, state, gang, HostCopy(CPU))
    memory.hold([], restored=False)
    copied(memory, state, 5)
    steps = [slots.step_of(kept, 0) for kept in (generation.state_memory, generation.own_memory)]
    assert steps == [slots.NO_STEP, 5]


@pytest.mark.parametrize(("left", "fits"), [(17 * MIB, True), (15 * MIB, False)])
def test_copies_that_do_not_fit_are_not_made_and_that_is_reported(memory, monkeypatch, capsys, left, fits):
    """A state of 4 MiB four times: in the memory of two transfers, and in two slots."""
    monkeypatch.setattr("ddpjob_session.memory.state_memory.available_bytes", lambda: left + MARGIN_BYTES)
    monkeypatch.setattr(threading, "Thread", AtOnce)
    memory.hold([], restored=False)
    memory.begin_copy()
    refusal = (
        "its state is not kept in memory: it needs 16 MiB, and the memory limit of the pod or the host leaves 15 MiB"
    )
    assert (memory.is_due(), refusal in capsys.readouterr().err) == (fits, not fits)


def test_what_an_optimizer_adds_in_its_first_step_counts(memory, state, monkeypatch, capsys):
    model = state.parts["model"]
    state.parts = {"model": model, "optimizer": (optimizer := torch.optim.AdamW(model.parameters()))}
    monkeypatch.setattr("ddpjob_session.memory.state_memory.available_bytes", lambda: 17 * MIB + MARGIN_BYTES)
    memory.hold([], restored=False)
    model[0](torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    memory.begin_copy()
    assert "its state is not kept in memory: it needs 48 MiB" in capsys.readouterr().err


def test_what_the_memory_holds_already_is_not_needed_again(memory, state, generation, monkeypatch):
    """After a restart in place."""
    memory.hold([], restored=False)
    copied(memory, state, 5, 9)
    monkeypatch.setattr("ddpjob_session.memory.state_memory.available_bytes", lambda: 9 * MIB + MARGIN_BYTES)
    again = PeriodicMemory(generation, state, Alone(), HostCopy(CPU))
    again.hold([], restored=True)
    copied(again, state, 10)


class Unloadable(torch.nn.Module):
    """A part whose state could be saved, but not loaded."""

    def get_extra_state(self):
        return datetime.datetime.now(datetime.UTC)


def test_a_state_that_cannot_be_copied_is_reported_and_training_continues(generation, capsys):
    state = State({"model": Unloadable()}, program="this test")
    memory = PeriodicMemory(generation, state, Alone(), HostCopy(CPU))
    memory.hold([], restored=False)
    memory.begin_copy()
    memory.await_copy(DEADLINE_SECONDS)
    assert "rank 0: its state is not kept in memory: this test: state['model']" in capsys.readouterr().err
    assert not memory.is_due()


def test_training_does_not_wait_for_the_check_of_a_copy(memory, state, monkeypatch):
    checked_by: list[str] = []
    monkeypatch.setattr(State, "check_loadable", lambda *_: checked_by.append(threading.current_thread().name))
    memory.hold([], restored=False)
    copied(memory, state, 5)
    assert checked_by == ["state-copy"]


def test_a_copy_after_collectives_that_were_aborted_is_not_kept(generation, state, capsys):
    """On a GPU, whose queue continues with what they have left."""
    memory = PeriodicMemory(generation, state, Alone(), HostCopy(CPU, is_wrong=lambda: True))
    memory.hold([], restored=False)
    memory.begin_copy()
    memory.await_copy(DEADLINE_SECONDS)
    assert "collectives before the copy were aborted because another rank failed" in capsys.readouterr().err
    assert slots.step_of(generation.state_memory, 0) == slots.NO_STEP


def test_a_gang_that_stops_keeps_its_last_step(memory, state, generation, monkeypatch):
    monkeypatch.setattr(periodic, "PAUSE_SECONDS", 3600.0)
    memory.hold([], restored=False)
    state.step = 7
    memory.keep_last_step()
    assert slots.step_of(generation.state_memory, 0) == slots.step_of(generation.own_memory, 0) == 7


def test_a_copy_that_cannot_be_written_is_the_last_and_training_continues(memory, monkeypatch, capsys):
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    memory.hold([], restored=False)
    monkeypatch.setattr(slots, "write", full)
    monkeypatch.setattr(threading, "Thread", AtOnce)
    memory.begin_copy()
    assert not memory.is_due()
    assert "rank 0: its state is not kept in memory: no space left" in capsys.readouterr().err


class SlowCopy(HostCopy):
    """A copy that takes the GPU 0.1 s."""

    def wait(self):
        return 0.1


class AtOnce:
    """A thread that does its work in `start`."""

    def __init__(self, *, target, args, **_: object):
        self.start = lambda: target(*args)


def test_a_large_state_is_copied_less_often(generation, state, monkeypatch):
    """Copies that take the GPU 0.1 s, each 20 s."""
    monkeypatch.setattr(threading, "Thread", AtOnce)
    memory = PeriodicMemory(generation, state, Alone(), SlowCopy(CPU))
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    memory.hold([], restored=False)
    memory.begin_copy()
    found = []
    for now[0] in (1000.0, 1019.0, 1021.0):
        found.append(memory.is_due())
    assert found == [False, False, True]
