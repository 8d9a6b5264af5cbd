"""One step of the loop, next to the same step written out: parts of a batch, clipping, the moving average, float16."""

import copy
from dataclasses import replace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from ddpjob_ranks.distributed import is_peer_loss
from ddpjob_ranks.watch.step_timer import StepTimer
from ddpjob_ranks.watch.timeline import Phase, Timeline
from ddpjob_recipes import digits
from ddpjob_session.run import Run
from ddpjob_session.steps import Steps
from ddpjob_trainer import export, loop, optim, recipes, worker
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import Batch, Feed
from ddpjob_trainer.evaluate import Evaluation
from ddpjob_trainer.loop import DivergedError, Training
from ddpjob_trainer.numerics import Numerics
from ddpjob_trainer.recipes import Recipe
from ddpjob_trainer.sampling import Sampling
from ddpjob_trainer.state import TrainingState
from support.fakes import fake

CPU = torch.device("cpu")
RATE, NUM_SAMPLES = 0.5, 10
RECIPE = Recipe(
    data=lambda *_: pytest.fail("no data are loaded"),
    model=lambda _: pytest.fail("no model is made"),
    optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=config.learning_rate),
    forward=lambda model, batch: model(batch[0].to(next(model.parameters()).dtype)),
    schedule=lambda _: 1.0,
)
TIMER = StepTimer(CPU, exact=False, timeline=Timeline())


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def batch(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    inputs, labels = torch.rand(NUM_SAMPLES, 3, generator=generator), torch.arange(NUM_SAMPLES) % 2
    return Batch(content=(inputs.double(), labels), num_samples=NUM_SAMPLES, weight=1 / NUM_SAMPLES)


def training(model: nn.Module, replica: nn.Module | None = None, **keys: Any) -> Training:
    given = parse_config({"recipe": "digits", "learningRate": RATE, "warmupEpochs": 0, **keys})
    config = recipes.resolve(given)
    dtype = torch.float16 if config.precision == "float16" else torch.float32
    numbers = Numerics(device=CPU, exact=True, dtype=dtype, channels_last=False, compile=False)
    average = worker.average_of(model, config.ema_decay) if config.ema_decay else None
    state = TrainingState(
        model=model,
        optimizer=RECIPE.optimizer(model, config),
        config=config,
        data={},
        average=average,
        scaler=numbers.loss_scaler(),
    )
    session: Any = fake(gang=fake(device=CPU, world_size=1, rank=0))
    feed: Any = fake(batch=batch, sampling=fake(steps_per_epoch=4))
    data: Any = None
    return Training(
        config=config,
        session=session,
        data=data,
        recipe=RECIPE,
        numerics=numbers,
        feed=feed,
        state=state,
        replica=replica or model,
        steps=Steps(session, 8),
    )


def network() -> nn.Linear:
    torch.manual_seed(7)
    return nn.Linear(3, 2).double()


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    inputs, labels = batch(step).content
    return nn.functional.cross_entropy(model(inputs), labels)


def expected_after(model: nn.Module, steps: int, *, clip: float = 0.0) -> list[torch.Tensor]:
    """The weights after each step of plain SGD, which are flat vectors."""
    model, after = copy.deepcopy(model), []
    for step in range(steps):
        gradients = torch.autograd.grad(loss_of(model, step), list(model.parameters()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        scale = min(1.0, clip / float(norm)) if clip else 1.0
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(RATE * scale * gradient)
        after.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    return after


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("size", [0, 5, 4, 1])
def test_parts_of_a_batch_give_the_step_of_the_whole_with_one_all_reduce(size):
    model = network()
    replica = DistributedDataParallel(model)
    reduced: list[int] = []

    def count(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        reduced.append(bucket.buffer().numel())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    replica.register_comm_hook(None, count)
    expected = expected_after(model, 2)
    run = training(model, replica, microBatchSize=size)
    for step in range(2):
        loss = run.take_step(step, TIMER)
        torch.testing.assert_close(flat(model), expected[step])
    assert reduced == 2 * [sum(p.numel() for p in model.parameters())]
    assert loss.item() > 0


def test_a_gradient_is_cut_to_the_norm_and_shorter_ones_are_left_alone():
    model = network()
    norm = float((expected_after(model, 1)[0] - flat(model)).norm()) / RATE
    for clip in (norm / 2, norm * 2):
        clipped = copy.deepcopy(model)
        training(clipped, clipGradientNorm=clip).take_step(0, TIMER)
        torch.testing.assert_close(flat(clipped), expected_after(model, 1, clip=clip)[0], rtol=1e-5, atol=1e-6)


def test_what_is_evaluated_is_the_moving_average_of_the_weights_after_each_step():
    model = network()
    first, second, third = expected_after(model, 3)
    run = training(model, emaDecay=0.75)
    for step in range(3):
        run.take_step(step, TIMER)
    average = 0.75 * (0.75 * first + 0.25 * second) + 0.25 * third
    torch.testing.assert_close(flat(run.state.evaluated), average)
    torch.testing.assert_close(flat(model), third)


def test_in_float16_the_loss_is_scaled_and_a_step_whose_gradients_overflow_is_left_out():
    model = network().float()
    run = training(model, precision="float16", clipGradientNorm=0.01)
    scaler = run.state.scaler
    run.take_step(0, TIMER)  # by the norm of the gradient without its scale
    expected = expected_after(network(), 1, clip=0.01)[0].float()
    torch.testing.assert_close(flat(model), expected, atol=1e-4, rtol=0)
    assert scaler.get_scale() == 2.0**16
    with torch.no_grad():
        model.weight.fill_(1e5)  # more than float16 holds
    overflowing = flat(model).clone()
    run.take_step(1, TIMER)
    assert torch.equal(flat(model), overflowing)
    assert scaler.get_scale() == 2.0**15


def test_in_float16_a_first_step_that_overflows_leaves_a_momentum_of_zeros(monkeypatch):
    """torch's fused SGD allocates its momentum in that step and does not write it."""
    monkeypatch.setattr(
        torch, "empty_like", lambda tensor: torch.full_like(tensor, 1e20)
    )  # as memory that was used before
    monkeypatch.setitem(globals(), "RECIPE", replace(RECIPE, optimizer=optim.sgd))
    model = network().float()
    run = training(model, precision="float16", momentum=0.5)
    with torch.no_grad():
        model.weight.fill_(1e5)  # more than float16 holds
    run.take_step(0, TIMER)
    assert [state["momentum_buffer"].count_nonzero().item() for state in run.state.optimizer.state.values()] == [0, 0]


class Waits(TorchDispatchMode):
    """Takes note of operations that would make the host wait for a GPU: values read, or sizes that hang on values."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name.startswith(self.NAMES):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_a_step_reads_nothing_back_from_the_device(monkeypatch):
    monkeypatch.setitem(globals(), "RECIPE", digits.digits)
    config = recipes.resolve(parse_config({"recipe": "digits"}))
    data = digits.load(None, config)
    plan = Sampling(num_samples=len(data.train), global_batch_size=64, seed=0, device=CPU)
    run = training(digits.model(data), microBatchSize=32, clipGradientNorm=1.0)
    run = replace(run, feed=Feed(split=data.train, sampling=plan, rank=0, world_size=1))
    with Waits() as waits:
        losses = [run.take_step(step, TIMER) for step in range(2)]
    assert waits.seen == []
    with Waits() as waits:
        losses[0].item()
    assert waits.seen == ["_local_scalar_dense"]


@pytest.mark.parametrize(("setting", "augmented"), [("always", [False, True]), ("last", [True]), ("never", [])])
def test_the_setting_chooses_the_evaluations_that_see_several_views(monkeypatch, setting, augmented):
    """Of an evaluation during the training and the last one."""
    views = MagicMock()
    recipe = replace(RECIPE, test_time_forward=views, test_time_note="six views")
    session: Any = MagicMock()
    run = replace(training(network(), testTimeAugmentation=setting), recipe=recipe, session=session, data=MagicMock())
    forwards, exported = [], []
    found = Evaluation(values={"accuracy": 90.0}, texts={"accuracy": "accuracy 90 %"}, num_samples=10)
    monkeypatch.setattr(loop, "evaluate", lambda _, __, forward, *___, **____: forwards.append(forward) or found)
    monkeypatch.setattr(Training, "export", lambda _, __, *, last, comparable: exported.append((last, comparable)))
    monkeypatch.setattr(Training, "seed_layers", lambda *_: None)
    for last in (False, True):
        run.evaluate(last=last)
    assert [last for last, forward in zip((False, True), forwards, strict=True) if forward is views] == augmented
    notes = [call.kwargs["note"] for call in session.report.evaluated.call_args_list]
    assert notes == ["six views" if last in augmented else "" for last in (False, True)]
    assert exported == [(False, True), (True, setting != "last")]


def test_weights_are_left_to_the_thread_that_writes_checkpoints(monkeypatch):
    session: Any = MagicMock(resumed=False)
    session.gang.rank = 0
    stored: list[str] = []
    monkeypatch.setattr(export, "save", lambda *_, prefix: stored.append(prefix))
    found = Evaluation(values={"accuracy": 90.0}, texts={"accuracy": "accuracy 90 %"}, num_samples=10)
    replace(training(network()), session=session).export(found, last=True, comparable=True)
    assert stored == []
    for tensors, write in (call.args for call in session.writer.export.call_args_list):
        write(tensors)
    assert stored == [export.BEST, ""]


class Counted(Training):
    """A training whose steps do nothing but take their time."""

    __slots__ = ()

    def take_step(self, step: int, timer: Any) -> torch.Tensor:
        for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            timer.enter(phase)
        timer.enter(Phase.LOG, step=step + 1)
        return torch.tensor(float("nan") if step == 7 else float(step))


class Event:
    """A moment of a GPU; all steps take 1 ms."""

    def __init__(self, *, enable_timing: bool = False) -> None: ...

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, _: "Event") -> float:
        return 1.0


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch):
    """A training on the device; its lines appear in the list."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    lines: list[tuple[int, float]] = []

    def begin(device: str, *, has_lost_collectives: bool = False) -> tuple[Counted, list[tuple[int, float]]]:
        state = fake(step=0, optimizer=fake(param_groups=[{"lr": 0.1}]))

        def step_done(**_: object) -> None:
            state.step += 1

        session = fake(
            gang=fake(device=torch.device(device), sum_=lambda loss: loss, world_size=1),
            timeline=Timeline(),
            report=fake(log=lambda *, step, loss, **_: lines.append((step, loss))),
            stop=fake(save_agreed=False, copy_agreed=False, gradients_kept_anywhere=False),
            stop_reached=lambda: False,
            copy_if_agreed=lambda: None,
            step_done=step_done,
            has_lost_collectives=lambda: has_lost_collectives,
        )
        sampling = fake(global_batch=lambda _: [0])
        session.state = state
        parts: Any = {
            "session": session,
            "steps": Steps(cast("Run", session), 9),
            "state": state,
            "feed": fake(sampling=sampling),
        }
        config = fake(learning_rate=0.1)
        return Counted(config=config, data=None, recipe=None, numerics=None, replica=None, **parts), lines

    return begin


def test_the_loss_is_read_at_once_on_a_cpu(begin) -> None:
    training, lines = begin("cpu")
    training.advance(0, logged=True)
    assert lines == [(1, 0.0)]


def test_the_loss_of_a_gpu_is_read_after_the_next_step(begin) -> None:
    training, lines = begin("cuda")
    training.advance(0, logged=True)
    assert lines == []
    training.advance(1, logged=True)
    assert lines == [(1, 0.0)]
    training.write_log()  # as before a checkpoint
    assert lines == [(1, 0.0), (2, 1.0)]


def test_a_loss_that_is_read_late_names_its_own_step(begin) -> None:
    training, _ = begin("cuda")
    training.state.step = 7
    training.advance(7, logged=True)
    with pytest.raises(DivergedError, match="after step 8 "):
        training.advance(8, logged=False)


def test_a_loss_that_is_wrong_since_another_rank_failed_is_no_divergence(begin) -> None:
    training, _ = begin("cuda", has_lost_collectives=True)
    training.state.step = 7
    training.advance(7, logged=True)
    with pytest.raises(RuntimeError, match="NCCL aborted a collective") as raised:
        training.advance(8, logged=False)
    assert is_peer_loss(raised.value)
