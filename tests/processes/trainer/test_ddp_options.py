"""What the configuration asks of DDP is what DDP does."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from ddpjob_measure.buckets import observe
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import numerics, recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import Batch
from ddpjob_trainer.parallel import replicate
from support import training_runs
from support.forked_ranks import finished

NUM_LAYERS = 4  # of 1 MiB of weights each


def plan(gang: Gang, **keys: object) -> list[dict[str, object]]:
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(NUM_LAYERS)])
    replica = replicate(model, parse_config({"recipe": "digits", **keys}), gang)

    def take_step(_: int) -> None:
        torch.autograd.backward(replica(torch.ones(2, 512)).sum())

    return list(observe(replica, take_step, gang, num_steps=3)["plan"])


class Compiled(nn.Sequential):
    """Some layers that a fake compiler takes; `graphs` are those that it got."""

    def __init__(self) -> None:
        super().__init__(*[nn.Linear(512, 512) for _ in range(NUM_LAYERS)])
        self.graphs: list[torch.fx.GraphModule] = []

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Of its own: torch 2.11 does not compile a bare nn.Sequential."""
        return super().forward(values)

    def compile(self, **settings: object) -> None:
        def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
            self.graphs.append(graph)
            return graph

        super().compile(backend=backend, **settings)


@pytest.fixture
def own_compiler() -> Iterator[None]:
    """What a test makes torch.compile do, no other test finds."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(optimize_ddp=True):
        yield


@pytest.mark.parametrize(("world_size", "for_training"), [(2, NUM_LAYERS), (1, 1)])
@pytest.mark.usefixtures("own_compiler")
def test_a_compiled_model_is_cut_at_the_buckets_of_several_ranks_and_steps_compile_nothing_more(
    gang: Gang, world_size: int, for_training: int
) -> None:
    gang = replace(gang, world_size=world_size)  # what the compiler sees; the group has one rank
    config = parse_config({"recipe": "digits", "bucketCapMb": 1})
    model = Compiled()
    replica = replicate(model, config, gang) if world_size > 1 else model
    batch = Batch(content=(torch.ones(2, 512), torch.zeros(2).long()), num_samples=2, weight=1.0)
    numbers = numerics.choose(config, gang, heavy=False)
    summed_before = gang.control._get_sequence_number_for_group()  # type: ignore[attr-defined]
    recipe = recipes.find("digits")
    numerics.compile_model(replica, [batch], [(torch.ones(3, 512), None)], recipe, numbers, gang, moved=lambda: None)
    summed = gang.control._get_sequence_number_for_group() - summed_before  # type: ignore[attr-defined]
    assert summed == 2, "the ranks' exchange about failures, and no gradients"
    for_evaluation = 1
    assert len(model.graphs) == for_training + for_evaluation
    torch.autograd.backward(recipe.loss_of(replica, batch))
    assert len(model.graphs) == for_training + for_evaluation


def test_buckets_have_the_configured_size(gang: Gang) -> None:
    assert len(plan(gang, bucketCapMb=100)) == 1
    assert len(plan(gang, bucketCapMb=1)) == NUM_LAYERS


def test_gradients_of_the_last_layers_are_reduced_first(gang: Gang) -> None:
    order = [name for bucket in plan(gang, bucketCapMb=1) for name in bucket["parameters"]]  # type: ignore[attr-defined]
    assert [name.partition(".")[0] for name in order] == ["3", "3", "2", "2", "1", "1", "0", "0"]


def test_a_communication_hook_excludes_the_observers(gang: Gang) -> None:
    with pytest.raises(ConfigError, match="DDP has a communication hook; set gradientCompression to none"):
        plan(gang, gradientCompression="bf16")


def test_gradients_in_bfloat16_change_losses_by_rounding(tmp_path) -> None:
    keys = ("epochs=1", "logEverySteps=1")
    plain = finished(tmp_path / "plain", *keys, ranks=2)
    compressed = finished(tmp_path / "bf16", *keys, "gradientCompression=bf16", ranks=2)
    assert compressed.weights != plain.weights
    # bfloat16 rounds gradients by up to 0.4 %, which dwarfs what processors differ by; losses are 1e-4 apart in the end.
    assert list(compressed.losses.values()) == pytest.approx(list(plain.losses.values()), rel=0.02)
    assert "rank  local  device    host" in plain.text()


@pytest.mark.parametrize("ranks", [1, 2])
def test_debug_mode_logs_how_ddp_is_set_up_which_one_rank_alone_does_without(tmp_path, ranks: int) -> None:
    """In a process of its own: torch reads the level when it loads."""
    run = training_runs.finished(tmp_path, "epochs=1", "debug=true", ranks=ranks)
    assert ("DDP Initialized with" in run.text) == (ranks > 1)
