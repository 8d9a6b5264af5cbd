import pytest

from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.config import Defaults, ResolvedConfig, parse_config

DEFAULTS = Defaults(
    epochs=30, global_batch_size=512, learning_rate=0.4, warmup_epochs=3, weight_decay=5e-4, momentum=0.9
)


def config(*, ranks: int = 1, **values: float) -> ResolvedConfig:
    return parse_config({"recipe": "resnet18-cifar10", **values}).resolve(DEFAULTS, world_size=ranks)


def test_the_default_learning_rate_grows_in_proportion_to_the_global_batch():
    assert config().learning_rate == 0.4
    assert config(globalBatchSize=2048).learning_rate == pytest.approx(1.6)
    assert config(globalBatchSize=128).learning_rate == pytest.approx(0.1)


def test_a_learning_rate_that_is_set_stays():
    assert config(globalBatchSize=2048, learningRate=0.3).learning_rate == 0.3
    assert config(perProcessBatchSize=64, learningRate=0.3, ranks=16).learning_rate == 0.3


@pytest.mark.parametrize("world_size", [1, 3, 16])
def test_a_batch_for_each_process_makes_the_global_batch_and_its_learning_rate(world_size):
    made = config(perProcessBatchSize=64, ranks=world_size)
    assert made.global_batch_size == 64 * world_size
    assert made.learning_rate == pytest.approx(0.1 * world_size / 2)
    assert made.recipe == "resnet18-cifar10"


@pytest.mark.parametrize(
    ("ranks", "wrong"), [(17_000, "globalBatchSize is 1088000"), (10_000, "learningRate is 500.0")]
)
def test_a_batch_for_each_process_that_is_too_large_for_so_many_ranks_is_refused(ranks, wrong):
    with pytest.raises(
        ConfigError, match=rf"(?s)^config: {wrong};.* \(with perProcessBatchSize 64 on {ranks} ranks\)$"
    ):
        config(perProcessBatchSize=64, ranks=ranks)


def test_without_it_the_number_of_ranks_changes_nothing():
    assert config(globalBatchSize=96, ranks=7) == config(globalBatchSize=96)


def test_two_batch_sizes_are_refused():
    with pytest.raises(ConfigError, match=r"^config: both globalBatchSize and perProcessBatchSize are set; set one"):
        config(globalBatchSize=64, perProcessBatchSize=64)
