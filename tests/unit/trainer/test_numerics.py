"""Precision, compilation and memory formats: what is chosen, and that results stay the same."""

import gc
import os
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch

from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes import digits
from ddpjob_trainer import evaluate, numerics, parallel
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import Batch
from support.fakes import Fake, fake

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
DETERMINISTIC: Any = torch.utils.deterministic


class OneRank(Gang):
    """What it is message is all there is to know."""

    def all_gather(self, value: object) -> list[object]:
        return [value]


class OneOfTwo(OneRank):
    """The other rank has an older processor."""

    def all_gather(self, value: object) -> list[object]:
        return [value, False]


def chosen(
    device: torch.device, *, heavy: bool = True, kind: type[Gang] = OneRank, **values: object
) -> numerics.Numerics:
    gang = kind(rank=0, world_size=1, device=device, control=None)
    return numerics.choose(parse_config({"recipe": "resnet18-cifar10", **values}), gang, heavy=heavy)


@pytest.fixture(autouse=True)
def bfloat16(monkeypatch):
    """Devices of these tests have it, unless a test says otherwise."""
    monkeypatch.setattr(numerics, "has_bfloat16", lambda _: True)


@pytest.mark.parametrize(
    ("device", "settings", "expected"),
    [
        (GPU, {}, "fast: bfloat16, channels_last, compiled"),
        (GPU, {"profile": "exact"}, "exact: float32"),
        (GPU, {"compile": "never"}, "fast: bfloat16, channels_last"),
        (GPU, {"precision": "float16"}, "fast: float16, channels_last, compiled"),
        (GPU, {"syncBatchNorm": True}, "fast: bfloat16, channels_last"),  # sums over ranks within the model
        (GPU, {"heavy": False}, "fast: float32"),  # a tiny network
        (CPU, {}, "fast: bfloat16, channels_last"),  # compilation takes longer than it saves
        (CPU, {"kind": OneOfTwo}, "fast: float32"),  # the other rank lacks bfloat16
    ],
)
def test_the_profile_and_the_hardware_decide_the_numerics(device, settings, expected):
    assert str(chosen(device, **settings)) == expected


def test_without_the_hardware_nothing_is_computed_in_bfloat16(monkeypatch):
    monkeypatch.setattr(numerics, "has_bfloat16", lambda device: device == GPU)
    assert chosen(GPU).dtype is torch.bfloat16
    assert (chosen(CPU).dtype, chosen(CPU).channels_last) == (torch.float32, False)
    monkeypatch.setattr(numerics, "has_bfloat16", lambda _: False)
    assert chosen(GPU).dtype is torch.float16


@pytest.fixture
def switches():
    """Gives back the process's switches."""
    before = (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    yield
    torch.use_deterministic_algorithms(False)
    DETERMINISTIC.fill_uninitialized_memory = True
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("switches")
def test_exact_allows_deterministic_kernels_alone(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    chosen(CPU, profile="exact").set_switches()
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cuda.matmul.allow_tf32
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)
    assert not DETERMINISTIC.fill_uninitialized_memory  # 5 % of a step of ResNet-18


@pytest.mark.usefixtures("switches")
def test_fast_allows_tf32():
    chosen(CPU).set_switches()
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32


def test_the_garbage_collector_is_paused_in_training_and_works_afterwards():
    def failing_training() -> None:
        with numerics.garbage_collector_paused():
            assert not gc.isenabled()
            assert gc.get_freeze_count() > 0
            raise LookupError

    with pytest.raises(LookupError):
        failing_training()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_sync_batch_norm_on_a_cpu_is_refused():
    config = parse_config({"recipe": "resnet18-cifar10", "syncBatchNorm": True})
    with pytest.raises(ConfigError, match="syncBatchNorm is true but the ranks train on CPUs"):
        parallel.synchronise_batch_norm(torch.nn.BatchNorm2d(2), config, CPU)


def test_sync_batch_norm_takes_the_place_of_batch_norm():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    config = parse_config({"recipe": "resnet18-cifar10", "syncBatchNorm": True})
    assert isinstance(parallel.synchronise_batch_norm(model, config, GPU)[1], torch.nn.SyncBatchNorm)  # type: ignore[index]
    plain = parse_config({"recipe": "resnet18-cifar10"})
    assert parallel.synchronise_batch_norm(model, plain, CPU) is model


class Compiled(torch.nn.Linear):
    """Compiles with a backend of the test's choice."""

    def __init__(self, backend: object) -> None:
        super().__init__(3, 2)
        self.backend = backend

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Of its own: torch 2.11 does not compile a bare layer of torch.nn."""
        return super().forward(values)

    def compile(self, **settings: object) -> None:
        super().compile(backend=self.backend, **settings)


def broken(*_: object) -> None:
    raise OSError("no compiler here\nand much more")


RECIPE = digits.digits


class Alone(Fake):
    """A gang of one rank without tensors."""

    rank, world_size = 0, 1

    def all_gather(self, value: object) -> list[object]:
        return [value]

    def barrier(self, timeout: timedelta) -> None:
        self.waits_for = timeout


def test_a_model_is_compiled_for_the_shapes_to_come(batches):
    calls = []

    def noting(graph: torch.fx.GraphModule, _: object) -> object:
        return lambda *values: calls.append("compiled") or graph(*values)

    model = Compiled(noting)
    held_out, progress = [(torch.rand(5, 3), None)], []
    message = trial(model, batches, held_out, moved=lambda: progress.append(len(calls)))
    assert message == "model compiled for 3 batch shapes"
    assert len(progress) == 3, "each shape may take minutes"
    assert model.training
    calls.clear()
    model(batches[1].content[0])
    assert calls == ["compiled"]


def test_a_model_that_changes_during_training_is_compiled_as_at_both_ends(batches, monkeypatch):
    stages = []
    monkeypatch.setattr(
        sys.modules[__name__], "RECIPE", replace(RECIPE, before_step=lambda _, done: stages.append(done))
    )
    trial(Compiled("eager"), batches, [])
    assert stages == [0.0, 0.0, 1.0, 1.0]


def test_a_model_that_cannot_be_compiled_for_evaluation_trains_without(batches):
    def fails_in_evaluation(graph: torch.fx.GraphModule, _: object) -> object:
        return graph if torch.is_grad_enabled() else broken()

    model = Compiled(fails_in_evaluation)
    held_out = [(torch.rand(5, 3), None)]
    message = trial(model, batches, held_out)
    assert message.startswith("torch.compile failed, so training continues without it")
    assert model.training
    with torch.no_grad():
        assert model.eval()(held_out[0][0]).shape == (5, 2)


def test_evaluations_have_two_shapes_of_batch_at_most():
    class Images(Fake):
        def __len__(self) -> int:
            return 11

        def batches(self, part: slice, size: int) -> object:
            assert part.stop - part.start <= size
            return [(torch.zeros(part.stop - part.start, 3), None)]

    alone, last_of_twelve = fake(rank=0, world_size=1), fake(rank=11, world_size=12)
    assert [len(images) for images, _ in evaluate.shapes(Images(), alone, batch_size=4)] == [4, 3]
    assert evaluate.shapes(Images(), last_of_twelve, batch_size=4) == []


def test_a_model_that_cannot_be_compiled_trains_without(batches):
    model = Compiled(broken)
    message = trial(model, batches, [])
    assert message.startswith("torch.compile failed, so training continues without it; set compile to never")
    assert "no compiler here" in message
    assert "\n" not in message
    assert model(batches[0].content[0]).shape == (4, 2)
    compiled: list[object] = []
    own = torch.compile(torch.sin, backend=lambda graph, _: compiled.append(graph) or graph.forward)
    own(torch.ones(1))
    assert compiled, "what the program compiles for itself is compiled"


def test_nccl_sums_in_one_order_where_bits_count(monkeypatch):
    for name in numerics.EXACT_NCCL:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    numerics.fix_nccl(parse_config({"recipe": "digits"}))
    assert not set(numerics.EXACT_NCCL) & set(os.environ)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    numerics.fix_nccl(parse_config({"recipe": "digits", "profile": "exact"}))
    assert {name: os.environ[name] for name in numerics.EXACT_NCCL} == {**numerics.EXACT_NCCL, "NCCL_ALGO": "Tree"}


def trial(model, batches, held_out, moved=lambda: None):
    gang = Alone()
    message = numerics.compile_model(model, batches, held_out, RECIPE, chosen(CPU), gang, moved)
    assert gang.waits_for > timedelta(days=1), "another rank may compile for longer than collectives wait"
    return message


@pytest.fixture
def batches():
    torch._dynamo.reset()
    return [
        Batch(content=(torch.rand(size, 3), torch.zeros(size).long()), num_samples=size, weight=1.0) for size in (4, 2)
    ]
