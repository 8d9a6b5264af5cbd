"""The configuration of a training: what is accepted, how it is recorded, and which batch follows from it."""

import json
import subprocess
import sys

import pytest

from ddpjob_operator.api.crd import structural
from ddpjob_operator.api.deadlines import Deadlines
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer.arguments import parse_arguments
from ddpjob_trainer.config import Defaults, ResolvedConfig, TrainerConfig, parse_config


def test_only_what_was_given_is_dumped():
    given = {"recipe": "digits", "globalBatchSize": 32}
    assert parse_config(given).model_dump(by_alias=True, exclude_unset=True) == given


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({}, ["recipe is missing", "digits"]),
        ({"recipe": "my recipe"}, ["recipe is 'my recipe'", "match pattern"]),
        ({"recipe": "digits", "epochs": 0}, ["epochs is 0", "greater than or equal to 1"]),
        ({"recipe": "digits", "globalBatchSize": "many"}, ["globalBatchSize is 'many'", "integer"]),
        ({"recipe": "digits", "learningRate": float("nan")}, ["learningRate is nan", "finite"]),
        ({"recipe": "digits", "batchSize": 4}, ["unknown key batchSize", "globalBatchSize"]),
        ({"recipe": "digits", "global_batch_size": 4}, ["unknown key global_batch_size"]),
    ],
)
def test_a_mistake_is_reported_in_one_line(values, parts):
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert all(part in lines[0] for part in parts), lines[0]


def test_every_mistake_has_its_line():
    with pytest.raises(ConfigError) as caught:
        parse_config({"recipe": "digits", "epochs": 0, "seed": -1, "colour": "red"})
    assert len(str(caught.value).splitlines()) == 3


def test_the_schema_is_structural():
    schema = structural(TrainerConfig.model_json_schema())
    text = json.dumps(schema)
    for construct in ("$ref", "$defs", "anyOf", "oneOf", "exclusiveMinimum", "exclusiveMaximum", '"null"'):
        assert construct not in text
    assert schema["required"] == ["recipe"]
    assert all("description" in field and "type" in field for field in schema["properties"].values())


def test_sources_win_in_order(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("recipe: digits\nepochs: 1\nseed: 1\nlearningRate: 5e-2\n")
    config = parse_arguments(
        ["--config", str(file), "--config-json", '{"epochs": 2, "seed": 2}', "--set", "seed=3", "--set", "momentum=0.5"]
    ).config
    assert (config.epochs, config.seed, config.learning_rate, config.momentum) == (2, 3, 0.05, 0.5)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--config", "/nowhere.yaml"], "--config /nowhere.yaml: cannot be read"),
        (["--config-json", "{"], "--config-json: is not valid JSON"),
        (["--config-json", "[]"], "--config-json: found list"),
        (["--set", "epochs"], "expected KEY=VALUE"),
    ],
)
def test_a_bad_source_is_named(arguments, parts):
    with pytest.raises(ConfigError, match=parts):
        parse_arguments(arguments)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ('{"recipe": "digits", "epochs": -3}', "config: epochs is -3; it should be greater than or equal to 1"),
        ('{"recipe": "digit"}', "config: recipe is 'digit'; expected one of digits, resnet18-cifar10"),
    ],
)
def test_a_bad_config_has_its_own_exit_code_and_is_the_termination_message(tmp_path, values, text):
    message = tmp_path / "termination-log"
    message.touch()
    done = subprocess.run(
        [sys.executable, "-m", "ddpjob_trainer", "--config-json", values],
        capture_output=True,
        text=True,
        timeout=60,
        env={**subprocess_environment(), contract.DDPJOB_TERMINATION_LOG: str(message)},
    )
    assert done.returncode == contract.EXIT_BAD_CONFIG
    assert done.stderr.strip() == message.read_text()
    assert message.read_text().startswith(text)


def subprocess_environment() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}


def test_the_watchdog_ends_a_hang_before_the_operator_would():
    config = parse_config({"recipe": "digits"})
    assert max(config.first_step_timeout_seconds, config.step_timeout_seconds) < Deadlines().hang_seconds


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
