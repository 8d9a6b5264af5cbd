import pytest
import torch

from ddpjob_trainer.config import ConfigError, parse_config
from ddpjob_trainer.optim import make_optimizer
from ddpjob_trainer.state import TrainingState


def state(*, width: int = 4, num_samples: int = 100, **changes: object) -> TrainingState:
    config = parse_config({"recipe": "digits", **changes})
    torch.manual_seed(width)
    model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width))
    return TrainingState(model=model, optimizer=make_optimizer(model, config), config=config, num_samples=num_samples)


def after_a_step(trained: TrainingState) -> TrainingState:
    trained.model(torch.ones(3, 2)).sum().backward()
    trained.optimizer.step()
    trained.step += 1
    return trained


def test_everything_comes_back():
    saved = after_a_step(state())
    generator = torch.get_rng_state()
    payload = saved.to_bytes()
    torch.rand(5)
    loaded = state(epochs=99, learningRate=0.5)
    loaded.load_bytes(payload)
    assert loaded.step == 1
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(
        torch.equal(a, b)
        for a, b in zip(loaded.model.state_dict().values(), saved.model.state_dict().values(), strict=True)
    )
    assert loaded.to_bytes() != state().to_bytes()
    for momenta in zip(loaded.optimizer.state.values(), saved.optimizer.state.values(), strict=True):
        assert torch.equal(momenta[0]["momentum_buffer"], momenta[1]["momentum_buffer"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"recipe": "resnet18-cifar10"}, "recipe was 'digits' when it was saved and is 'resnet18-cifar10' now"),
        ({"globalBatchSize": 32}, "global_batch_size was 64"),
        ({"seed": 1}, "seed was 0"),
        ({"num_samples": 99}, "num_samples was 100"),
        ({"width": 5}, "does not fit recipe digits"),
    ],
)
def test_the_state_of_another_training_is_refused(changes, told):
    with pytest.raises(ConfigError, match=told) as caught:
        state(**changes).load_bytes(after_a_step(state()).to_bytes())
    assert "remove its checkpoint folder" in str(caught.value)
