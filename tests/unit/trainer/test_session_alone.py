"""A session of one rank, in the process of the test."""

import os
import threading
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from ddpjob.session import Session
from ddpjob_ranks import contract, generation
from ddpjob_ranks.errors import ConfigError
from ddpjob_session import ending, replica, run
from ddpjob_session.checkpoints import writer
from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.report import Reporter
from support.fakes import fake
from support.processes import DEADLINE_SECONDS

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE")


@pytest.fixture
def session(monkeypatch):
    request = fake(received=False, ignore=lambda: None)  # takes no signal of pytest's
    monkeypatch.setattr(run, "StopRequest", lambda: request)
    monkeypatch.setattr(
        ending, "leave", lambda code: pytest.fail(f"the session ends this process with exit code {code}")
    )
    with mock.patch.dict(os.environ):  # a session sets the variables of its rank
        for name in VARIABLES:
            os.environ.pop(name, None)
        yield Session()


@pytest.mark.parametrize("parts", [{"step": nn.Linear(1, 1)}, {"rate": 0.1}])
def test_parts_with_a_reserved_name_or_without_a_state_are_refused(session, parts):
    with session, pytest.raises(ValueError, match=r"Session\.track"):
        session.track(**parts)


def test_a_part_that_could_not_be_loaded_again_is_refused_before_training(session):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["rate"] = np.ones(1)
    with session, pytest.raises(ConfigError, match=r"script .*\['rate'\] is of type numpy\.ndarray"):
        session.track(model=model, optimizer=optimizer)


@pytest.mark.parametrize("place", [contract.DDPJOB_CHECKPOINT_DIR, contract.DDPJOB_CHECKPOINT_URI, "memory"])
def test_steps_without_a_tracked_part_are_refused_where_a_restart_would_continue(session, monkeypatch, tmp_path, place):
    if place == "memory":
        mine = generation.Generation(number=1, pipe=-1, state_memory=-1, own_memory=-1, stores=-1)
        monkeypatch.setattr(generation, "current", lambda _: mine)
        monkeypatch.setattr(generation, "replacement_of_this_pod", lambda _: 0)
    else:
        monkeypatch.setenv(place, tmp_path.as_uri() if place == contract.DDPJOB_CHECKPOINT_URI else str(tmp_path))
    with session:
        session.replicate(nn.Linear(1, 1))
        with pytest.raises(ConfigError, match=r"call session\.track\(model=model, optimizer=optimizer\) before"):
            next(session.steps(2))
        monkeypatch.setattr(generation, "current", lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_without_a_place_for_a_state_steps_need_no_tracked_part(session, capfd):
    with session:
        assert list(session.steps(2)) == [0, 1]
    assert "no checkpoints: " in capfd.readouterr().out


def test_a_number_that_is_no_tensor_is_reported_with_all_its_digits(session, capfd):
    with session:
        for _ in session.steps(1):
            session.report(rate=0.1, drawn=np.array([0.5]))
    assert "step 1/1 rate 0.1 drawn 0.5\n" in capfd.readouterr().out


@pytest.mark.usefixtures("session")
def test_settings_that_have_changed_since_the_checkpoint_are_in_the_log(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(tmp_path))
    for total, rate in ((1, 0.01), (2, 0.02)):
        with Session(settings={"lr": rate}) as each:
            each.track(model=nn.Linear(1, 1))
            assert list(each.steps(total)) == [total - 1]
    assert "saved by 1 rank; settings that have changed since: lr; " in capfd.readouterr().out


def test_a_step_that_is_left_by_break_is_done_and_saved(session, monkeypatch, tmp_path):
    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(tmp_path))
    with session:
        state = session.track(model=session.replicate(nn.Linear(1, 1)))
        for step in session.steps(10):
            if step == 3:
                break
    assert state.step == 4
    assert [path.name.split("-")[1] for path in tmp_path.glob("step-*.pt")] == ["0000000004"]


def test_as_many_checkpoints_as_asked_for_are_kept_and_the_one_resumed_from_is_not_saved_again(
    session, monkeypatch, tmp_path, capfd
):
    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(tmp_path))
    for keeper, total in ((session, 1), (Session(keep_checkpoints=1), 3)):
        with keeper:
            keeper.track(model=nn.Linear(1, 1))
            for _ in keeper.steps(total):
                keeper.save()
    assert [path.name.split("-")[1] for path in tmp_path.glob("step-*.pt")] == ["0000000003"]
    with Session(keep_checkpoints=1) as again:
        again.track(model=nn.Linear(1, 1))
        assert list(again.steps(3)) == []
        again.save()
    assert capfd.readouterr().out.count("checkpoint of step 3: ") == 1


def test_a_checkpoint_that_is_asked_for_within_a_step_is_of_the_end_of_that_step(session, monkeypatch, tmp_path):
    """The optimizer's step is done there, and the step does not count yet: resumed from that, it would be done again."""
    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(tmp_path))
    done = nn.Linear(1, 1)
    with session:
        session.track(done=done)
        for step in session.steps(4):
            done.weight.data.fill_(step + 1)
            if step == 1:
                session.save()
    saved = {
        content["step"]: content["done"]["weight"].item()
        for content in (torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("step-*.pt")))
    }
    assert saved == {2: 2.0, 4: 4.0}


def test_a_rank_that_is_to_start_again_without_a_state_in_memory_first_completes_its_checkpoint(
    session, monkeypatch, tmp_path
):
    """As on GPUs. The storage accepts the checkpoint once this rank waits for it."""
    own = os.memfd_create("own")
    mine = generation.Generation(number=1, pipe=-1, state_memory=-1, own_memory=own, stores=-1)
    monkeypatch.setattr(generation, "_current", [mine])
    monkeypatch.setenv(contract.DDPJOB_STATE_IN_MEMORY, "0")
    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(tmp_path))
    monkeypatch.setattr(writer, "LINGER_SECONDS", DEADLINE_SECONDS)
    is_waited_for = threading.Event()
    say, save = Reporter.say, CheckpointFolder.save

    def say_and_open(report, text):
        say(report, text)
        if "is still being written" in text:
            is_waited_for.set()

    def save_when_open(folder, *arguments):
        assert is_waited_for.wait(DEADLINE_SECONDS)
        save(folder, *arguments)

    monkeypatch.setattr(Reporter, "say", say_and_open)
    monkeypatch.setattr(CheckpointFolder, "save", save_when_open)
    with session:
        session.track()
        for step in session.steps(2, checkpoint_every=1):
            if step == 1:
                mine.save()  # what the thread runs before it ends the process
                saved = [path.name for path in tmp_path.glob("step-*.json")]
                is_waited_for.set()
    os.close(own)
    assert [name.split("-")[1] for name in saved] == ["0000000001"]


def test_the_plan_of_the_buckets_is_final_before_the_first_step(session):
    """Otherwise a resumed run would sum the gradients of its first step in another order."""
    with session:
        model = session.replicate(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), bucket_cap_mb=0.0005)
        left = [parameter.grad for parameter in model.parameters()]
        plans = []
        for _ in range(3):
            model(torch.ones(1, 8)).sum().backward()
            plans.append([bucket.buffer().numel() for bucket in model.reducer._get_zeros_like_grad_buckets()])
    assert left == 8 * [None]
    assert plans == 3 * [[144, 144]]


def test_sparse_gradients_are_left_to_ddp(session):
    with session:
        model = session.replicate(nn.Embedding(4, 2, sparse=True))
        model(torch.tensor([1])).sum().backward()
        replica.settle_buckets(model)
    assert model.module.weight.grad.is_sparse
