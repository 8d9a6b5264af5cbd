"""Checkpoints are written behind the training, from a copy that later steps cannot change."""

import io
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from ddpjob_ranks import contract, generation
from ddpjob_session import ending
from ddpjob_session.checkpoints import writer
from ddpjob_session.checkpoints.claim import Claim, Fenced, Owner
from ddpjob_session.checkpoints.files import Folder
from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.checkpoints.snapshot import tensors_in
from ddpjob_session.checkpoints.storage import ChecksummedFile
from ddpjob_session.checkpoints.writer import CheckpointWriter
from ddpjob_session.report import Reporter
from ddpjob_session.state import from_bytes
from ddpjob_trainer import recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.optim import sgd
from ddpjob_trainer.state import TrainingState
from support.fakes import fake
from support.workers import worker

DEADLINE_SECONDS = 60.0


class Storage(CheckpointFolder):
    """A folder on storage that accepts data once `open_to_data` is set."""

    open_to_data = threading.Event()
    reached = threading.Event()

    def save(self, step, write_state):
        self.reached.set()
        assert self.open_to_data.wait(DEADLINE_SECONDS)
        super().save(step, write_state)


@pytest.fixture
def storage(tmp_path) -> Storage:
    Storage.open_to_data, Storage.reached = threading.Event(), threading.Event()
    return Storage(claim=Claim(storage=Folder(tmp_path), owner=Owner(uid="u1", attempt=1)), keep=3)


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def report(out) -> Reporter:
    reporter = Reporter(enabled=True, out=out)
    reporter.begin(step=0, total_steps=9, steps_per_epoch=9, checkpoint_step=None)
    return reporter


@pytest.fixture
def background(storage, report) -> CheckpointWriter:
    return CheckpointWriter(storage, report, torch.device("cpu"))


def trained(model: torch.nn.Module | None = None) -> TrainingState:
    """After one step."""
    config = recipes.resolve(parse_config({"recipe": "digits"}))
    torch.manual_seed(0)
    model = model or torch.nn.Linear(2, 3)
    state = TrainingState(model=model, optimizer=sgd(model, config), config=config, data={})
    take_step(state)
    return state


def take_step(state: TrainingState) -> None:
    state.model(torch.ones(4, 2)).square().sum().backward()
    state.optimizer.step()
    state.step += 1


def save(background: CheckpointWriter, state: TrainingState) -> None:
    background.save(state, since=time.monotonic())


def saved(folder: CheckpointFolder) -> dict[str, Any]:
    found = folder.load_newest()
    return from_bytes(bytes(found[1]))


def test_steps_taken_during_a_save_do_not_reach_the_checkpoint(storage, background):
    state, expected = trained(), trained().content()
    save(background, state)
    take_step(state)
    Storage.open_to_data.set()
    background.wait()
    content = saved(storage)
    assert content["step"] == 1
    assert torch.equal(content["model"]["weight"], expected["model"]["weight"])
    assert not torch.equal(content["model"]["weight"], state.model.get_parameter("weight")), "the step changed it"
    momenta = [held["optimizer"]["state"][0]["momentum_buffer"] for held in (content, expected)]
    assert torch.equal(*momenta)


def test_a_checkpoint_is_reported_after_its_commit_with_the_whole_stall_of_training(report, out, background):
    background.save(trained(), since=time.monotonic() - 5)  # with what the loop did before the copy
    assert Storage.reached.wait(DEADLINE_SECONDS)
    report.end()
    assert contract.PROGRESS_CHECKPOINT_STEP not in out.getvalue()
    assert "checkpoint of step" not in out.getvalue()
    Storage.open_to_data.set()
    background.wait()
    report.end()
    (stalled,) = re.findall(
        r"^checkpoint of step 1: stalled (\d+\.\d) ms, written in \d+\.\d\d s$", out.getvalue(), re.MULTILINE
    )
    assert float(stalled) >= 5_000
    assert '"checkpointStep": 1' in out.getvalue().splitlines()[-2]


def test_a_state_of_many_tensors_is_written_in_few_pieces_straight_from_the_copy(storage, monkeypatch, background):
    """The GIL is held between pieces, not while one is hashed or written: so few and large ones, and no copy of them."""
    addresses: list[int] = []

    def write(file: ChecksummedFile, piece: bytes | memoryview) -> int:
        addresses.append(np.frombuffer(piece, dtype=np.uint8).ctypes.data)
        return original(file, piece)

    original = ChecksummedFile.write
    monkeypatch.setattr(ChecksummedFile, "write", write)
    Storage.open_to_data.set()
    state = trained(torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(50)]))
    save(background, state)
    background.wait()
    copies = tensors_in(background._copy.take(state.content()))
    assert len(copies) == 200, "weights, biases and their momenta"
    assert {tensor.untyped_storage().data_ptr() for tensor in copies} <= set(addresses)
    assert len(addresses) < 60
    assert saved(storage)["step"] == 1


def test_one_save_is_in_flight_at_most_and_none_is_lost(storage, background, monkeypatch):
    state = trained()
    save(background, state)
    assert Storage.reached.wait(DEADLINE_SECONDS)
    take_step(state)
    waits, wait = threading.Event(), cast("Any", writer).wait
    monkeypatch.setattr(writer, "wait", lambda *args, **how: waits.set() or wait(*args, **how))
    second = threading.Thread(target=save, args=[background, state], daemon=True)
    second.start()
    assert waits.wait(DEADLINE_SECONDS), "for the first one, whose copy it would write over"
    Storage.open_to_data.set()
    second.join(DEADLINE_SECONDS)
    background.wait()
    assert saved(storage)["step"] == 2
    assert len([name for name in storage.storage.names() if name.endswith(".json") and name != "claim.json"]) == 2


def test_a_step_is_saved_once(background):
    Storage.open_to_data.set()
    state = trained()
    save(background, state)
    background.wait()
    Storage.reached.clear()
    save(background, state)
    background.wait()
    assert not Storage.reached.is_set()


def test_a_value_that_can_no_longer_be_loaded_is_not_saved_and_ends_nothing(storage, background, out):
    Storage.open_to_data.set()
    state = trained()
    save(background, state)
    take_step(state)
    state.optimizer.param_groups[0]["lr"] = np.array(0.1)
    save(background, state)
    background.wait()
    assert (saved(storage)["step"], background.newest_step) == (1, 1)
    assert "step 2 is not saved, and training continues: recipe digits: state['optimizer']" in out.getvalue()
    state.optimizer.param_groups[0]["lr"] = np.float64(0.1)  # as a schedule makes it that begins to use NumPy
    save(background, state)
    background.wait()
    assert saved(storage)["step"] == 2


@pytest.mark.parametrize("surface", [CheckpointWriter.check, CheckpointWriter.wait])
def test_an_error_of_the_thread_is_raised_to_training(surface, monkeypatch, background):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointFolder, "save", full)
    background.check()  # nothing is under way
    save(background, trained())
    background.check()  # nothing is known yet
    Storage.open_to_data.set()
    background._thread.shutdown()
    with pytest.raises(OSError, match="No space left"):
        surface(background)


def test_a_fenced_save_is_raised_to_training(storage, background):
    save(background, trained())
    Claim(storage=storage.storage, owner=Owner(uid="u1", attempt=2)).take()
    Storage.open_to_data.set()
    with pytest.raises(Fenced):
        background.wait()
    assert storage.load_newest() is None


def test_storage_that_does_not_respond_is_reported(storage, monkeypatch, background):
    monkeypatch.setattr(writer, "WRITE_TIMEOUT_SECONDS", 0.05)
    save(background, trained())
    with pytest.raises(TimeoutError, match=f"checkpoint of step 1: the storage took nothing .* {storage.location}"):
        background.wait()
    Storage.open_to_data.set()


def leave(background: CheckpointWriter, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """End as rank 0 whose training failed during a save."""

    def exits(_code: int) -> None:
        raise SystemExit

    monkeypatch.setattr(os, "_exit", exits)
    watchdog = fake(find_lost_rank=lambda: "rank 1 is gone", report_failure=lambda _: None, aborted_collectives=False)
    with pytest.raises(SystemExit):
        ending.fail(error, worker(), watchdog, background)


@pytest.fixture
def patient_storage(storage, report, monkeypatch) -> Storage:
    """It accepts data once the wait for it was reported."""
    say = report.say

    def open_too(text: str) -> None:
        say(text)
        Storage.open_to_data.set()

    monkeypatch.setattr(report, "say", open_too)
    monkeypatch.setattr(writer, "LINGER_SECONDS", DEADLINE_SECONDS)
    return storage


def test_a_save_that_is_in_progress_when_a_peer_dies_is_completed(patient_storage, out, monkeypatch, background):
    save(background, trained())
    leave(background, RuntimeError("Connection closed by peer"), monkeypatch)
    assert saved(patient_storage)["step"] == 1
    assert "checkpoint of step 1 is still being written" in out.getvalue()


@pytest.mark.parametrize(("error", "waited"), [(RuntimeError("a bug"), True), (Fenced("over"), False)])
def test_a_save_that_does_not_end_is_abandoned(out, monkeypatch, error, waited, background):
    monkeypatch.setattr(writer, "LINGER_SECONDS", 0.05)
    save(background, trained())
    leave(background, error, monkeypatch)
    assert ("checkpoint of step 1 was not stored in time and is abandoned" in out.getvalue()) == waited
    Storage.open_to_data.set()


def test_a_rank_that_is_to_start_again_waits_only_once_for_a_save_that_does_not_end(out, monkeypatch, background):
    mine = generation.Generation(number=1, pipe=-1, state_memory=-1, own_memory=-1, stores=-1)
    mine.before_exit = background.linger
    monkeypatch.setattr(generation, "_current", [mine])
    monkeypatch.setattr(writer, "LINGER_SECONDS", 0.05)
    save(background, trained())
    leave(background, RuntimeError("a bug"), monkeypatch)
    assert out.getvalue().count("is still being written") == 1
    Storage.open_to_data.set()


def test_a_save_that_fails_while_the_rank_ends_is_reported(patient_storage, out, background):
    save(background, trained())
    Claim(storage=patient_storage.storage, owner=Owner(uid="u1", attempt=2)).take()
    background.linger()
    assert "checkpoint of step 1 was not written: checkpoint folder" in out.getvalue()


def test_a_rank_without_a_folder_writes_nothing(report, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    background = CheckpointWriter(None, report, torch.device("cpu"))
    save(background, trained())
    background.check()
    background.wait()
    assert list(Path().iterdir()) == []


def test_training_goes_on_while_weights_are_exported_and_does_not_change_them(background):
    stored, may_write, weights = [], threading.Event(), {"weight": torch.ones(3)}

    def write(tensors):
        assert may_write.wait(DEADLINE_SECONDS)
        stored.append(tensors["weight"].tolist())

    background.export(weights, write)
    weights["weight"].add_(1)
    background.check()
    assert stored == []
    may_write.set()
    background.wait()
    assert stored == [[1.0, 1.0, 1.0]]


def test_what_goes_wrong_with_an_export_is_raised_between_steps(background):
    def write(_):
        raise Fenced("a later attempt owns the folder")

    background.export({"weight": torch.ones(3)}, write)
    with pytest.raises(Fenced):
        background.wait_for_export()
    with pytest.raises(Fenced):
        background.check()
