"""What one rank sets up, and how it trains, in the process of the test."""

import io
import random
import weakref
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.watch.timeline import Timeline
from ddpjob_session import run
from ddpjob_session.checkpoints import files
from ddpjob_session.report import Reporter
from ddpjob_session.run import Run
from ddpjob_trainer import recipes, worker
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.loading import Data
from ddpjob_trainer.loop import COLLECT_EVERY_STEPS, Training
from ddpjob_trainer.optim import sgd
from support.fakes import fake

ALONE = Worker(rank=0, world_size=1, local_rank=0, local_world_size=1, launcher="test", master_addr="", master_port=0)


def network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def test_one_rank_reads_no_batch_before_its_first_step(gang, monkeypatch):
    samples = TensorDataset(torch.rand(80, 1, 8, 8), torch.arange(80) % 10)
    recipe = replace(
        recipes.find("digits"), data=lambda *_: Data(train=samples, test=samples), model=lambda _: network()
    )
    monkeypatch.setattr("ddpjob_recipes.digits.digits", recipe)
    monkeypatch.setattr(run, "StopRequest", lambda: fake(received=False))  # takes no signal of pytest's
    read = []
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda _, sample: read.append(sample) or (torch.rand(1, 8, 8), 0))
    config = parse_config({"recipe": "digits", "dataWorkers": 0, "globalBatchSize": 10})
    training = worker.set_up(config, ALONE, Run(gang, Reporter(enabled=False)))
    assert read == []
    training.feed.batch(0)
    assert len(read) == 10


def test_data_of_another_type_are_refused_and_generated_ones_follow_from_the_seed(gang, monkeypatch):
    monkeypatch.setattr(run, "StopRequest", lambda: fake(received=False))
    drawn = []

    def data(*_):
        drawn.append((torch.rand(()).item(), np.random.rand(), random.random()))  # noqa: S311
        return drawn[0], drawn[0]

    monkeypatch.setattr("ddpjob_recipes.digits.digits", replace(recipes.find("digits"), data=data))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"recipe digits: data\(\) returned tuple; expected ddpjob.recipe.Data"):
            worker.set_up(parse_config({"recipe": "digits"}), ALONE, Run(gang, Reporter(enabled=False)))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("version", "is_said"), [("", True), ("3", False)])
def test_the_log_says_that_training_data_without_a_version_are_not_compared(gang, monkeypatch, version, is_said):
    monkeypatch.setattr(run, "StopRequest", lambda: fake(received=False))
    samples = TensorDataset(torch.rand(80, 1, 8, 8), torch.arange(80) % 10)
    data = Data(train=samples, test=samples, version=version)
    recipe = replace(recipes.find("digits"), data=lambda *_: data, model=lambda _: network())
    monkeypatch.setattr("ddpjob_recipes.digits.digits", recipe)
    config = parse_config({"recipe": "digits", "dataWorkers": 0})
    log = io.StringIO()
    training = worker.set_up(config, ALONE, Run(gang, Reporter(enabled=True, out=log)))
    assert ("Data.version is not set" in log.getvalue()) == is_said
    assert (training.state.data["data"] == "80 samples, no version") == is_said


def test_a_state_that_could_not_be_loaded_again_is_refused_before_the_first_step(gang, monkeypatch):
    def optimizer(model, config):
        made = sgd(model, config)
        made.param_groups[0]["momentum"] = Decimal("0.9")
        return made

    odd = replace(recipes.find("digits"), optimizer=optimizer)
    monkeypatch.setattr("ddpjob_recipes.digits.digits", odd)
    with pytest.raises(ConfigError, match=r"\['momentum'\] is of type decimal\.Decimal"):
        worker.set_up(parse_config({"recipe": "digits"}), ALONE, Run(gang, Reporter(enabled=False)))


def test_an_optimizer_whose_step_needs_a_closure_is_refused_before_the_first_step(gang, monkeypatch):
    second_order = replace(
        recipes.find("digits"), optimizer=lambda model, _: torch.optim.LBFGS(model.parameters(), lr=1)
    )
    monkeypatch.setattr("ddpjob_recipes.digits.digits", second_order)
    with pytest.raises(ConfigError, match=r"recipe digits: the optimizer is LBFGS, .* expected .* SGD or AdamW"):
        worker.set_up(parse_config({"recipe": "digits"}), ALONE, Run(gang, Reporter(enabled=False)))


def test_a_complete_run_that_is_stopped_in_its_evaluation_has_nothing_to_save(gang, monkeypatch, tmp_path):
    """It has not claimed the folder, which is another run's, so saving would end it as superseded."""
    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(tmp_path))
    termination = tmp_path / "termination"
    termination.touch()
    monkeypatch.setenv(contract.DDPJOB_TERMINATION_LOG, str(termination))

    def started(*, stopped: bool) -> Training:
        monkeypatch.setattr(run, "StopRequest", lambda: fake(received=stopped))
        config = parse_config({"recipe": "digits", "epochs": 1, "globalBatchSize": 1000, "evaluationBatchSize": 16})
        return worker.set_up(config, ALONE, Run(gang, Reporter(enabled=False)))

    assert started(stopped=False).run()
    claimed = (tmp_path / "claim.json").read_text()
    again = started(stopped=True)
    assert not again.run()
    assert again.session.stopped() == contract.EXIT_CHECKPOINTED
    assert (tmp_path / "claim.json").read_text() == claimed
    assert termination.read_text() == f"{contract.TERMINATION_CHECKPOINT_PREFIX}2"


def test_a_checkpoint_that_is_being_read_is_progress_for_the_watchdog(gang, monkeypatch, tmp_path):
    class CountingTimeline(Timeline):
        num_moved = 0

        def moved(self):
            self.num_moved += 1
            super().moved()

    monkeypatch.setenv(contract.DDPJOB_CHECKPOINT_DIR, str(tmp_path))
    monkeypatch.setattr(run, "StopRequest", lambda: fake(received=False))
    monkeypatch.setattr(files, "PIECE_BYTES", 100_000)
    config = parse_config({"recipe": "digits", "epochs": 1, "globalBatchSize": 1000})
    trained = worker.set_up(config, ALONE, Run(gang, Reporter(enabled=False)))
    assert trained.run()
    timeline = CountingTimeline()
    resumed = worker.set_up(config, ALONE, Run(gang, Reporter(enabled=False), timeline))
    num_pieces = -(-next(tmp_path.glob("*.pt")).stat().st_size // 100_000)
    assert num_pieces > 10
    assert timeline.num_moved >= num_pieces
    for key, value in trained.state.model.state_dict().items():
        assert torch.equal(resumed.state.model.state_dict()[key], value)


def test_reference_cycles_that_steps_leave_are_collected_before_the_evaluation(gang, monkeypatch):
    class Cycle:
        def __init__(self):
            self.itself = self

    monkeypatch.setattr(run, "StopRequest", lambda: fake(received=False))
    left, alive = [], []
    take_step = Training.take_step

    def leaving_a_cycle(training, step, timer):
        left.append(weakref.ref(Cycle()))
        alive.append(sum(cycle() is not None for cycle in left))
        return take_step(training, step, timer)

    monkeypatch.setattr(Training, "take_step", leaving_a_cycle)
    config = parse_config({"recipe": "digits", "epochs": 1, "globalBatchSize": 20})
    assert worker.set_up(config, ALONE, Run(gang, Reporter(enabled=False))).run()
    assert len(left) == 72
    assert max(alive) <= COLLECT_EVERY_STEPS
