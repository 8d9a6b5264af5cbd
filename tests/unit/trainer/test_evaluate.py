"""An evaluation counts each sample once."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ddpjob_trainer.data import Preparation, Split
from ddpjob_trainer.evaluate import evaluate
from ddpjob_trainer.metrics import Mean, accuracy
from support.fakes import fake

NUM_SAMPLES = 10


def split() -> Split:
    return Split(
        images_NCHW=torch.arange(NUM_SAMPLES, dtype=torch.uint8).view(-1, 1, 1, 1),
        labels_N=torch.arange(NUM_SAMPLES) % 2,
        preparation=Preparation(mean=(0.0,), std=(1.0,), max_shift=0, flip="never"),
    )


def count(
    *, rank: int, world_size: int, asked: list[int], stop_at: int | None = None, batch_size: int = 2
) -> tuple[float, int] | None:
    def stop_reached() -> bool:
        asked.append(1)
        return len(asked) == stop_at

    def summed(values: torch.Tensor) -> torch.Tensor:
        """Over all ranks, of which four samples are classified right."""
        if world_size == 1:
            assert values.flatten()[-1] == NUM_SAMPLES
        return torch.tensor([4, NUM_SAMPLES] if values.numel() == 2 else NUM_SAMPLES)

    def forward(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert not model.training
        assert not torch.is_grad_enabled()
        return torch.eye(2)[batch[0].flatten().long() % 2]

    gang = fake(rank=rank, world_size=world_size, device=torch.device("cpu"), sum_=summed)
    frozen = torch.nn.Identity().eval()
    model = torch.nn.Sequential(torch.nn.Identity(), frozen)
    found = evaluate(
        model, split(), forward, {"accuracy": accuracy()}, gang, batch_size=batch_size, stop_reached=stop_reached
    )
    assert model.training, "the model is in training mode again"
    assert not frozen.training, "a part that is frozen stays in evaluation mode"
    return None if found is None else (found.values["accuracy"], found.num_samples)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_all_ranks_ask_equally_often_whatever_their_shares(world_size):
    times = []
    for rank in range(world_size):
        asked: list[int] = []
        count(rank=rank, world_size=world_size, asked=asked)
        times.append(len(asked))
    assert len(set(times)) == 1
    assert times[0] >= 1


def test_it_ends_at_the_batch_where_all_agree_to_stop():
    asked: list[int] = []
    assert count(rank=0, world_size=1, asked=asked, stop_at=3) is None
    assert len(asked) == 3
    assert count(rank=0, world_size=1, asked=[]) == (40.0, NUM_SAMPLES)


@pytest.mark.parametrize(("batch_size", "batches"), [(1, 10), (3, 4), (10, 1), (512, 1)])
def test_the_batch_size_is_that_of_the_configuration(batch_size, batches):
    asked: list[int] = []
    assert count(rank=0, world_size=1, asked=asked, batch_size=batch_size) == (40.0, NUM_SAMPLES)
    assert len(asked) == batches


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_mean_is_the_same_however_samples_are_shared_out(world_size):
    errors = torch.tensor([1.0, 2.0, 3.0, 10.0])
    ranks = [Mean(lambda outputs, _: outputs) for _ in range(world_size)]
    for sample, error in enumerate(errors):
        ranks[sample % world_size % 2].update(error[None], None)  # the third rank has no samples
    together = torch.stack([rank._sum_and_count for rank in ranks]).sum(dim=0)
    assert {rank.compute(lambda _: together) for rank in ranks} == {4.0}


def test_the_metrics_of_the_documentation_have_one_value_for_each_sample():
    page = (Path(__file__).parents[3] / "docs/how-to/own-model.md").read_text()
    namespace: dict[str, Any] = {"Mean": Mean}
    exec(page.partition("<!-- test: mean -->\n```python\n")[2].partition("```")[0], namespace)  # noqa: S102 - it is ours
    batch = None, torch.tensor([0, 2])
    found = {}
    for name, new in namespace["metrics"].items():
        (metric := new()).update(torch.tensor([[9.0, 0, 0], [0, 0.1, 0]]), batch)
        found[name] = metric.compute(lambda values: values)
    assert found == {"distance": 0.5, "sure": 50.0}


def test_the_adapter_of_the_documentation_gives_torchmetrics_predictions_and_targets():
    page = (Path(__file__).parents[3] / "docs/how-to/own-model.md").read_text()
    example = page.partition("<!-- test: torchmetrics -->\n```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {"torch": torch}
    exec(example, namespace)  # noqa: S102 - it is ours
    metric = Mock(compute=lambda: torch.tensor(0.25))
    metric.to.return_value = metric
    adapted = namespace["Torchmetric"](metric)
    adapted.update("outputs", ("inputs", "labels"))
    assert metric.update.call_args.args == ("outputs", "labels")
    assert adapted.compute(lambda _: pytest.fail("torchmetrics communicates itself")) == 0.25
