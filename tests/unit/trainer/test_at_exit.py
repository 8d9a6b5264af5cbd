"""The copy of the state for a restart in place: no larger than the memory that is left."""

import os
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import IO, Any

import pytest
import torch

from ddpjob_ranks import contract, slots
from ddpjob_ranks.generation import Generation
from ddpjob_ranks.host_memory import available_bytes
from ddpjob_ranks.watch.timeline import Timeline
from ddpjob_session import run, shared_state
from ddpjob_session.memory.at_exit import MemoryAtExit
from ddpjob_session.memory.state_memory import MARGIN_BYTES
from ddpjob_session.report import Reporter
from ddpjob_session.state import State, from_bytes
from support.fakes import Fake, fake
from support.saved_states import Sampler, restored

MIB = 2**20
MEMINFO = "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"


@pytest.mark.parametrize(
    ("limit", "available"), [("max\n", 8000 * 1024), ("6000000\n", 1_300_000), ("600000000\n", 8000 * 1024)]
)
def test_what_is_left_is_bounded_by_the_host_and_by_the_limit_without_cached_files(tmp_path, limit, available):
    files = {"memory.max": limit, "memory.current": "5000000\n", "meminfo": MEMINFO}
    files["memory.stat"] = "anon 4000000\nfile 900000\nshmem 600000\ninactive_file 100000\nactive_file 200000\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path, tmp_path / "meminfo") == available


def test_without_a_cgroup_the_host_alone_counts(tmp_path):
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert available_bytes(tmp_path, tmp_path / "meminfo") == 8000 * 1024


@pytest.fixture
def generation(monkeypatch):
    hooks = sys.modules["torch.optim.optimizer"]  # those that this test registers are not to outlive it
    monkeypatch.setattr(hooks, "_global_optimizer_pre_hooks", OrderedDict())
    node, own = (os.memfd_create(name) for name in ("node", "own"))
    yield Generation(number=1, pipe=-1, state_memory=node, own_memory=own, stores=-1)
    os.close(node)
    os.close(own)


def memory_of(state: State, generation: Generation) -> MemoryAtExit:
    return MemoryAtExit(generation, state, fake(rank=1))


def holding(generation: Generation, **parts: Any) -> tuple[MemoryAtExit, State]:
    """The memory of a training with these parts, or with a model alone, that has begun; and its state."""
    state = State(parts or {"model": torch.nn.Linear(2, 2)}, program="this test")
    memory = memory_of(state, generation)
    memory.hold([], restored=False)
    return memory, state


@pytest.mark.parametrize(("left", "kept"), [(5 * MIB, True), (3 * MIB, False)])
def test_a_state_that_does_not_fit_is_not_kept_and_that_is_reported(monkeypatch, capsys, generation, left, kept):
    monkeypatch.setattr("ddpjob_session.memory.state_memory.available_bytes", lambda: left + MARGIN_BYTES)
    state = State({"model": torch.nn.Linear(1024, 1024, bias=False)}, program="this test")  # 4 MiB
    memory = memory_of(state, generation)
    state.step = 7
    memory.hold([], restored=False)
    memory.save()
    refusal = (
        "rank 1: its state is not kept in memory: it needs 4 MiB, and the memory limit of the pod or the host leaves"
    )
    step = slots.step_of(generation.state_memory)
    assert (step == 7, refusal in capsys.readouterr().err) == (kept, not kept)


TAKES_THE_LOCK = "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def test_another_rank_of_the_node_waits_until_the_state_is_whole(monkeypatch, generation):
    """It would find an empty slot and overwrite the state, after which the step of the first rank could be that of the slot."""
    memory, _ = holding(generation)
    write, refused = os.pwrite, []

    def pwrite(descriptor, *arguments):
        other = [sys.executable, "-c", TAKES_THE_LOCK, str(descriptor)]
        done = subprocess.run(other, pass_fds=[descriptor], capture_output=True, text=True, check=False)
        refused.append("BlockingIOError" in done.stderr)
        return write(descriptor, *arguments)

    monkeypatch.setattr(os, "pwrite", pwrite)
    memory.save()
    assert (slots.step_of(generation.state_memory), refused) == (0, [True, True])


def test_a_state_that_is_not_loaded_completely_is_not_kept(generation):
    """The failure of another rank while the newest checkpoint is loaded: step 0 in memory would win over that."""
    state = State({"model": torch.nn.Linear(2, 2)}, program="this test")
    memory = memory_of(state, generation)
    memory.save()
    assert slots.step_of(generation.state_memory) == slots.NO_STEP


def test_an_optimizer_that_is_not_tracked_changes_the_state_too(monkeypatch, capsys, generation):
    """Plain SGD has no state, so that scripts need not track it."""
    monkeypatch.setattr("ddpjob_session.memory.at_exit.STEP_SECONDS", 0.0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory, state = holding(generation, model=model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    memory.save()
    in_the_step = slots.step_of(generation.state_memory)
    assert "rank 1: its state is not kept in memory: step 1 has changed it and has not ended" in capsys.readouterr().err
    state.step = 1
    memory.step_done()
    memory.save()
    assert (in_the_step, slots.step_of(generation.state_memory)) == (slots.NO_STEP, 1)


class WouldWaitError(Exception):
    """A thread would wait for a lock that the end of the process alone releases."""


class Held:
    """A lock that raises WouldWaitError where a lock would wait."""

    def __init__(self):
        self._is_held = False

    def acquire(self, **_):
        if self._is_held:
            raise WouldWaitError
        self._is_held = True
        return True

    def release(self):
        self._is_held = False

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


@pytest.fixture
def raises_instead_of_waiting(monkeypatch):
    monkeypatch.setattr(threading, "Lock", Held)


@pytest.mark.usefixtures("raises_instead_of_waiting")
def test_a_rank_that_ends_while_it_begins_leaves_what_it_has_kept(generation):
    """One thread keeps the state because the generation ends; the main thread would empty the memory for the new steps."""
    memory, _ = holding(generation)
    memory.save()
    with pytest.raises(WouldWaitError):
        memory.hold([], restored=True)
    assert slots.step_of(generation.state_memory) == 0


@pytest.mark.usefixtures("raises_instead_of_waiting")
def test_a_step_without_an_optimizer_is_not_counted_while_the_state_is_kept(generation):
    """The sampler of one step would be kept with the number of another one."""
    memory, state = holding(generation, sampler=Sampler(0))
    memory.save()
    state.step = 1
    with pytest.raises(WouldWaitError):
        memory.step_done()
    assert slots.step_of(generation.state_memory) == 0


def test_what_a_sampler_draws_for_a_step_that_is_not_done_is_not_kept(generation):
    sampler = Sampler(0)
    memory, state = holding(generation, sampler=sampler)
    sampler.drawn.append(1)
    state.step = 1
    memory.step_done()
    sampler.drawn.append(2)
    memory.save()
    assert from_bytes(bytes(slots.read(generation.state_memory)))["sampler"]["drawn"] == [0, 1]


@pytest.mark.parametrize("changes_late", [True, False])
def test_what_a_rank_knows_in_the_forward_pass_is_final_where_no_step_has_changed_it_later(generation, changes_late):
    """Also not in the first step of a process, of which the others know nothing yet."""
    model = torch.nn.BatchNorm1d(1)
    state = State({"model": model}, program="this test")
    gang = fake(rank=0, device=torch.device("cpu"))
    memory = MemoryAtExit(generation, state, gang)
    memory.hold([], restored=False)
    final = []
    for step in range(1, 4):
        memory.forward_done(model)
        final.append(bool(slots.read(generation.own_memory, step % 2)[0]))
        model.running_mean += int(changes_late)
        state.step = step
        memory.step_done()
        assert slots.read(generation.own_memory, step % 2)[0], "the end of a step is final"
    assert final == [False, not changes_late, not changes_late]


def test_a_rank_that_knows_nothing_of_its_own_writes_nothing_in_a_step(generation):
    """What it would write takes as long as 4 % of a step of the digits."""
    memory, state = holding(
        generation, model=(model := torch.nn.BatchNorm1d(2))
    )  # whose statistics are those of rank 0
    memory.forward_done(model)
    state.step = 1
    memory.step_done()
    assert os.fstat(generation.own_memory).st_size == 0


def several_types() -> torch.nn.Module:
    """Buffers that no state of a module has, so that they come from what rank 0 alone knows."""
    model = torch.nn.Linear(1, 1)
    for number, dtype in enumerate((torch.float32, torch.int64, torch.bool, torch.float32, torch.bfloat16)):
        model.register_buffer(f"buffer_{number}", torch.rand(3, number).t().mul(9).to(dtype), persistent=False)
    return model


def test_each_buffer_of_rank_0_comes_back_to_its_place(generation):
    """They are packed by type."""
    state = State({"model": (model := several_types())}, program="this test")
    memory = MemoryAtExit(generation, state, OtherRanks(0))
    memory.hold([], restored=False)
    state.step = 1
    memory.step_done()
    memory.save()
    again = State({"model": (other := several_types())}, program="this test")
    assert restored(MemoryAtExit(generation, again, OtherRanks(0)), lambda: None)
    pairs = zip(other.buffers(), model.buffers(), strict=True)
    assert all(torch.equal(found, kept) for found, kept in pairs)


def test_weights_that_something_else_than_an_optimizer_changes_are_not_kept(generation, capfd):
    """An average that is put in their place for an evaluation, or an update by hand, while another rank ends."""
    model = torch.nn.Linear(1, 1)
    memory = MemoryAtExit(generation, State({"model": model}, program="this test"), OtherRanks(0))
    memory.hold([], restored=False)
    with torch.no_grad():
        model.weight.add_(1)
    memory.save()
    assert "its state is not kept in memory: weights were changed outside" in capfd.readouterr().err
    assert slots.step_of(generation.state_memory, 0) == slots.NO_STEP


@pytest.fixture(autouse=True)
def state_as_message(monkeypatch):
    """The state comes as other messages do: `test_shared_state` tests how it comes."""

    def receive(gang, payload, moved, *, source=0):
        return from_bytes(gang.broadcast_bytes(payload, moved, source=source))

    monkeypatch.setattr(shared_state, "receive", receive)


class OtherRanks(Fake):
    """A gang of two, in which the other rank has what this one has. Without messages."""

    world_size, device = 2, torch.device("cpu")

    def __init__(self, rank: int, *received: bytes) -> None:
        self.rank, self._received = rank, list(received)
        self.moved: list[Any] = []

    def all_gather(self, value):
        return [value, value]

    def broadcast_bytes(self, payload, moved=None, *, source=0):
        self.moved.append(moved)
        return payload if self.rank == source else memoryview(self._received.pop(0))

    def begin_max(self, _values):
        return fake(wait=lambda: None)

    def barrier(self):
        pass


def kept_state(generation: Generation, model: torch.nn.Module) -> bytes:
    """The state of the model after 7 steps, which this generation has kept in memory; nothing is in that of the rank alone."""
    state = State({"model": model}, program="this test")
    memory = memory_of(state, generation)
    state.step = 7
    memory.hold([], restored=False)
    memory.save()
    return bytes(slots.read(generation.state_memory))


@pytest.mark.parametrize(
    ("rank", "model", "is_restored"),
    [
        (0, torch.nn.BatchNorm1d(2), False),
        (1, torch.nn.BatchNorm1d(2), True),
        (0, torch.nn.Linear(2, 2), True),
    ],
    ids=["statistics of rank 0", "those of another rank, which nothing uses", "no statistics"],
)
def test_the_state_in_memory_is_taken_unless_the_lost_pod_alone_knew_statistics_that_count(
    generation, rank, model, is_restored
):
    """Another rank's statistics would not be those of a run without the failure, so the newest checkpoint is taken."""
    kept = kept_state(generation, model)
    memory = MemoryAtExit(generation, State({"model": model}, program="this test"), OtherRanks(rank, kept, b""))
    assert restored(memory, lambda: None) == is_restored


def test_a_rank_that_is_killed_while_it_keeps_a_newer_state_leaves_the_older_one(generation, monkeypatch):
    """That of another rank of the node, which has completed a step less."""
    kept = kept_state(generation, model := torch.nn.Linear(2, 2))
    state = State({"model": model}, program="this test")
    newer = memory_of(state, generation)
    newer._keep_others()
    newer._step = state.step = 8
    newer._versions = newer._count_changes()

    def killed(_: object, file: IO[bytes]) -> None:
        file.write(b"half of it")
        file.flush()
        raise KeyboardInterrupt  # which nothing catches

    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        newer.save()
    assert restored(MemoryAtExit(generation, state, OtherRanks(0)), lambda: None)
    assert (state.step, bytes(slots.read(generation.state_memory))) == (7, kept)


def test_each_piece_of_a_state_from_memory_is_progress_for_the_watchdog(generation):
    """As those of a checkpoint are, since a large state takes long to send."""
    kept = kept_state(generation, torch.nn.Linear(2, 2))
    state = State({"model": torch.nn.Linear(2, 2)}, program="this test")
    gang, timeline = OtherRanks(1, kept, b""), Timeline()
    assert restored(MemoryAtExit(generation, state, gang), timeline.moved)
    assert gang.moved[0] == timeline.moved


def test_only_rank_0_looks_for_checkpoints_after_the_state_was_in_memory(generation, monkeypatch, tmp_path):
    """In an object store that is a request of each rank, while training waits."""
    kept = kept_state(generation, torch.nn.Linear(2, 2))
    (no_folder := tmp_path / "file").touch()  # it cannot be listed
    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(no_folder))
    monkeypatch.setattr("ddpjob_ranks.generation._current", [generation])
    monkeypatch.setattr(run, "StopRequest", lambda: fake(received=False))  # takes no signal of pytest's
    generation.number = 2
    resumed = run.Run(OtherRanks(1, kept, b""), Reporter(enabled=False))
    resumed.restore(State({"model": torch.nn.Linear(2, 2)}, program="this test"))
    resumed.begin(total_steps=9)
    assert resumed.state.step == 7


@pytest.mark.parametrize(("number", "cause"), [(1, None), (2, "rank 3 was killed, continued from step 7")])
def test_rank_0_reports_what_the_ranks_of_all_pods_know_of_restarts(generation, number, cause):
    """A new pod may join ranks that have not started again yet."""
    generation.number = number
    ranks = fake(rank=0, device=torch.device("cpu"), all_gather=lambda mine: [mine, ("", 2), ("rank 3 was killed", 1)])
    begun = run.Run(ranks, Reporter(enabled=False))
    begun.state = fake(step=7)
    restarts = begun._restarts_before(generation)
    assert (restarts.number, restarts.cause, restarts.joined_replacements) == (number - 1, cause, 3)
