"""What a session does with each kind of loop: a row of the table in docs/how-to/own-script.md, and its test.

Each loop is run once as a whole, and once in two attempts, between which it is stopped: the states are equal bit for bit.
"""

import copy
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from ddpjob.session import Session
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.watch.timeline import Phase, Timeline
from ddpjob_session import reported
from ddpjob_session.compiler_watch import CompilerWatch
from ddpjob_session.settings import text_of
from ddpjob_session.state import ScriptState, digests, fingerprints, load_own
from support.saved_states import Sampler

TOTAL = 60


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))


def loss_of(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.randn(8, 3)).square().mean()
    return loss


#: A loop: makes its parts, and gives what is tracked and what each step does.
Loop = Callable[[Session], tuple[dict[str, Any], Callable[[int], None]]]


def accumulation(session: Session):
    """Gradients of four steps, one step of the optimizer."""
    model = session.replicate(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        loss_of(model).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    return {"model": model, "optimizer": optimizer}, step


def several_optimizers(session: Session):
    """As a GAN: one model in each step, the other in every third."""
    models = [session.replicate(network()) for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in models]

    def step(number: int) -> None:
        for which in (0, 1) if number % 3 == 0 else (0,):
            optimizers[which].zero_grad()
            loss_of(models[which]).backward()
            optimizers[which].step()

    return {"a": models[0], "b": models[1], "first": optimizers[0], "second": optimizers[1]}, step


def average(session: Session):
    """An average of the weights, and a learning rate that NumPy computes."""
    net = network()
    model, averaged = session.replicate(net), AveragedModel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = LambdaLR(optimizer, lambda done: 0.5 * (1 + np.cos(done / TOTAL)))

    def step(_: int) -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        schedule.step()
        averaged.update_parameters(net)

    return {"model": model, "optimizer": optimizer, "schedule": schedule, "average": averaged}, step


def scaler(session: Session):
    """A GradScaler whose first steps overflow."""
    model = session.replicate(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaling = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def step(number: int) -> None:
        optimizer.zero_grad()
        scaling.scale(loss_of(model) * (float("inf") if number < 3 else 1.0)).backward()
        scaling.step(optimizer)
        scaling.update()

    return {"model": model, "optimizer": optimizer, "scaler": scaling}, step


def complex_and_tied(session: Session):
    """Complex parameters, tied weights and a sparse buffer."""
    model: Any = nn.Module()
    torch.manual_seed(0)
    model.first, model.second = nn.Linear(3, 3), nn.Linear(3, 3)
    model.second.weight = model.first.weight
    model.factor = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    model.register_buffer("adjacency", torch.eye(3).to_sparse())
    model.forward = lambda x: (model.second(model.first(x @ model.adjacency.to_dense())) * model.factor).abs()
    replicated = session.replicate(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(_: int) -> None:
        optimizer.zero_grad()
        loss_of(replicated).backward()
        optimizer.step()

    return {"model": replicated, "optimizer": optimizer}, step


def own_position(session: Session):
    """A stream whose position each rank has for itself."""
    model = session.replicate(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    position = Sampler()

    def step(number: int) -> None:
        position.drawn.append(number)
        optimizer.zero_grad()
        (loss_of(model) / len(position.drawn)).backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer, "per_rank": {"stream": position}}, step


LOOPS = [accumulation, several_optimizers, average, scaler, complex_and_tied, own_position]


def run(loop: Loop, *, stop: Any = None, at: int = 21) -> None:
    with Session() as session:
        parts, step = loop(session)
        torch.manual_seed(1)
        session.track(**parts)
        for number in session.steps(TOTAL, checkpoint_every=7):
            step(number)
            if stop is not None and number == at:
                stop.received = True


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a.to_dense(), b.to_dense())
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other)
    else:
        assert a == b


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_is_stopped_ends_in_the_state_of_one_that_is_not(loop, stop, saved, tmp_path):
    with pytest.raises(SystemExit, match=str(contract.EXIT_CHECKPOINTED)):
        run(loop, stop=stop)
    stop.received = False
    stopped_after = max(saved())
    assert 21 < stopped_after < TOTAL
    run(loop)
    resumed = saved()[TOTAL]
    os.environ[contract.DDPJOB_CHECKPOINT_DIR] = str(tmp_path / "whole")
    run(loop)
    whole = torch.load(next((tmp_path / "whole").glob(f"step-{TOTAL:010d}-*.pt")), weights_only=True)
    for state in (whole, resumed):
        state["random"] = [(drawn["torch"], drawn.get("parts")) for drawn in state["random"]]  # the test seeds no other
    assert_equal(resumed, whole)


@pytest.mark.usefixtures("stop")
def test_with_accumulated_gradients_a_checkpoint_waits_for_the_optimizer(saved):
    """A step that adds gradients alone is followed by one that needs them."""
    run(accumulation)
    assert {step % 4 for step in saved()} == {0}


class ByHand:
    """A session with a model, an optimizer and a step."""

    def __init__(self, session: Session, **track: Any) -> None:
        self.model = session.replicate(nn.Linear(1, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state = session.track(model=self.model, optimizer=self.optimizer, **track)
        self.num_done = 0

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 1)).sum().backward()
        self.optimizer.step()
        self.num_done += 1


@pytest.mark.usefixtures("stop")
def test_a_step_whose_number_zip_took_for_data_that_had_ended_does_not_count(saved):
    with Session() as session:
        by_hand = ByHand(session)
        for _ in zip(session.steps(100), range(5), strict=False):
            by_hand.step()
    assert (by_hand.num_done, by_hand.state.step, list(saved())) == (5, 5, [5])


@pytest.mark.usefixtures("stop")
def test_a_script_may_destroy_the_process_group_as_its_last_line(saved):
    for total, breaks in ((3, False), (9, True)):
        with Session() as session:
            by_hand = ByHand(session)
            for _ in session.steps(total):
                by_hand.step()
                if breaks and by_hand.num_done == 2:
                    break
            dist.destroy_process_group()
    assert list(saved()) == [3, 5]


@pytest.mark.usefixtures("stop")
def test_no_metric_ends_a_training_and_a_loss_that_is_no_number_is_said(capfd, monkeypatch):
    monkeypatch.setattr(reported, "REPORT_SECONDS", 0.0)
    with Session() as session:
        by_hand = ByHand(session)
        for number in session.steps(3):
            by_hand.step()
            more = {f"accuracy_of_class_{index}": 0.5 for index in range(17)}
            loss = torch.tensor(float("nan")) if number else 1.0
            session.report(loss=loss, **more, a_name_that_is_longer_than_a_line_allows=1.0)
    text = capfd.readouterr().out
    assert text.count("accuracy_of_class_16, a_name_that_is_longer_than_a_line_allows: only in the log") == 1
    assert text.count("the loss of step 2 is nan: the training has probably diverged") == 1
    assert "the loss has not been finite since step 2" in text
    assert [int(step) for step in re.findall(r"^step (\d)/3 loss", text, re.MULTILINE)] == [1, 2, 3]


@pytest.mark.usefixtures("stop")
def test_an_evaluation_is_a_phase_with_a_limit_of_its_own_and_signs_of_life(capfd):
    with Session(step_timeout_seconds=1, evaluation_timeout_seconds=77) as session:
        by_hand = ByHand(session)
        for _ in session.steps(2):
            by_hand.step()
            with session.evaluating() as go_on:
                mark = session._run.timeline.mark
                go_on()
                assert session._limits.of(mark.phase, past_first_step=True) == 77
            assert (mark.phase, session._run.timeline.mark.phase) == (Phase.EVALUATE, Phase.STEP)
            session._run.report._print_progress()
    assert '"alive": 2' in capfd.readouterr().out


def test_a_stop_within_an_evaluation_counts_the_step_whose_weights_have_changed(stop, saved):
    done = []

    def run() -> None:
        with Session() as session:
            by_hand = ByHand(session)
            for number in session.steps(9):
                by_hand.step()
                done.append(number)
                if number == 4:
                    with session.evaluating() as go_on:
                        stop.received = True
                        while True:  # the answer to a question is taken with the next one
                            go_on()

    with pytest.raises(SystemExit, match=str(contract.EXIT_CHECKPOINTED)):
        run()
    assert (len(done), list(saved())) == (5, [5])


class Split(Sampler):
    """A part that says how it is split."""

    def load_state_dicts(self, states, rank, world_size):
        self.drawn = [*states, rank, world_size]


def test_a_part_that_ranks_have_of_their_own_needs_a_rule_for_another_number_of_ranks():
    state = ScriptState({}, program="script train.py", world_size=2, settings={})
    state.random = [{"parts": {"stream": number}} for number in range(3)]
    state.own = {"stream": (split := Split())}
    load_own(state, rank=1, world_size=2)
    assert split.drawn == [0, 1, 2, 1, 2]
    state.own = {"stream": Sampler()}
    with pytest.raises(
        ConfigError, match=r"stream was saved for each of 3 ranks, and there are 2 now; .*load_state_dicts"
    ):
        load_own(state, rank=1, world_size=2)
    state.own = {"other": (new := Sampler(5))}
    with pytest.raises(ConfigError, match=r"it has no other; .*new=\['other'\]"):
        load_own(state, rank=1, world_size=2)
    state.new = ["other"]
    load_own(state, rank=1, world_size=2)
    assert new.drawn == [5]


@pytest.mark.usefixtures("stop")
def test_a_part_that_ranks_have_of_their_own_may_hold_numbers_of_numpy(saved):
    with Session() as session:
        session.track(per_rank={"stream": Sampler(np.int64(5))})  # type: ignore[arg-type]  # as a script may hold it
        list(session.steps(1))
    assert saved()[1]["random"][0]["parts"] == {"stream": {"drawn": [5]}}


@pytest.mark.usefixtures("stop")
def test_a_part_that_is_added_later_may_be_missing_in_the_checkpoint():
    added = Sampler(5)
    for parts in ({}, {"added": added, "new": ["added"]}):
        with Session() as session:
            ByHand(session, **parts)
            list(session.steps(2))
    assert added.drawn == [5]


def test_parts_that_differ_between_ranks_are_named_once(capfd):
    session = Session()
    session.print = print  # type: ignore[method-assign,assignment]
    for _ in range(2):
        session._name_differences([{"sampler": "a", "model": "x"}, {"sampler": "b", "model": "x"}])
    assert capfd.readouterr().out.count("sampler differs between rank 0 and rank 1, and only rank 0's is saved") == 1
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    states = [
        ScriptState({"model": each, "sampler": Sampler(1)}, program="", world_size=2, settings={})
        for each in (model, copy.deepcopy(model), other)
    ]
    prints = [fingerprints(state) | digests(state) for state in states]
    assert (prints[0] == prints[1], prints[0] == prints[2]) == (True, False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("relu", "relu"),
        (functional.relu, "torch.nn.functional.relu"),
        ({"b", "a"}, "{'a', 'b'}"),
        ({"f": [nn.ReLU, {2, 1}]}, "{'f': [<class 'torch.nn.modules.activation.ReLU'>, {1, 2}]}"),
        (partial(functional.relu, inplace=True), "partial(torch.nn.functional.relu, (), {'inplace': True})"),
        (Sampler(), "<support.saved_states.Sampler object>"),
        (Path("a"), "a"),
        ((0.1, None), "(0.1, None)"),
    ],
)
def test_settings_are_the_same_text_in_each_process(value, text):
    assert text_of(value) == text


def test_a_late_compilation_is_a_phase_of_its_own():
    timeline = Timeline()
    timeline.enter(Phase.STEP)
    watch = CompilerWatch(timeline)
    seen: list[Phase] = []

    def backend(graph, _):
        seen.append(timeline.mark.phase)
        return graph

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    watch.close()
    assert (seen, timeline.mark.phase) == ([Phase.COMPILE], Phase.STEP)


@pytest.mark.usefixtures("stop")
def test_a_model_whose_buckets_cannot_be_settled_is_said(capfd):
    with Session() as session:
        session.replicate(nn.Linear(1, 1), static_graph=True)
        hooked = nn.Linear(1, 1)
        hooked.weight.register_post_accumulate_grad_hook(lambda _: pytest.fail("a hook of the script has run"))
        session.replicate(hooked)
    assert capfd.readouterr().out.count("a resumed run may differ from one that was not interrupted") == 2


@pytest.mark.usefixtures("stop")
def test_the_default_device_of_a_script_is_not_that_of_what_ranks_exchange(saved):
    with Session() as session:
        by_hand = ByHand(session)
        torch.set_default_device("meta")  # stands for a GPU
        try:
            for _ in session.steps(3, checkpoint_every=1):
                by_hand.optimizer.step()
            session.save()
        finally:
            torch.set_default_device("cpu")
    assert max(saved()) == 3


@pytest.mark.usefixtures("stop")
def test_a_checkpoint_of_the_session_before_it_had_steps_to_drive_is_loaded(tmp_path, capfd):
    """Of a linear model and SGD with momentum after 3 steps, with torch's generator seeded with 7."""
    shutil.copytree(Path(__file__).parent / "stored", tmp_path, dirs_exist_ok=True)
    with Session(settings={"lr": 0.5}) as session:
        coming = session.batches(DataLoader(TensorDataset(torch.arange(8.0))))
        model: Any = session.replicate(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        state = session.track(model=model, optimizer=optimizer)
        next(session.steps(4))
        seed = torch.get_rng_state()[0].item()
        (sample,) = next(coming)
    assert (state.step, round(model.module.weight.item(), 6), seed, sample.item()) == (4, 0.338896, 7, 3.0)
    assert "resumed from step 3" in capfd.readouterr().out
