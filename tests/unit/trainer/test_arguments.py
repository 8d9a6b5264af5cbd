"""The command line of the trainer."""

from typing import get_args

import pytest

from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import resolve
from ddpjob_trainer.arguments import parse_arguments
from ddpjob_trainer.config import TrainerConfig

DIGITS = ("--set", "recipe=digits")


@pytest.mark.parametrize(
    "options", [["-b", "32", "-e", "2", "-c", "a.pt"], ["--batch-size", "32", "--epochs", "2", "--checkpoint", "a.pt"]]
)
def test_short_options_of_common_scripts(options):
    config = parse_arguments([*DIGITS, "--set", "epochs=9", *options]).config
    assert (config.global_batch_size, config.epochs, config.initial_checkpoint) == (32, 2, "a.pt")


def test_single_settings_of_a_recipe_are_set_by_their_path():
    options = ("--config-json", '{"settings": {"width": 8, "depth": 2}}', "--set", "settings.width=16")
    config = parse_arguments([*DIGITS, *options, "--set", "settings.block.norm=true"]).config
    assert config.settings == {"width": 16, "depth": 2, "block": {"norm": True}}
    with pytest.raises(ConfigError, match=r"epochs is \{'first': 1\}; it should be a valid integer"):
        parse_arguments([*DIGITS, "--set", "epochs.first=1"])


def test_a_short_option_that_is_not_given_leaves_the_recipes_own():
    assert parse_arguments([*DIGITS]).config.model_fields_set == {"recipe"}


CHOICES = [
    (field.alias, choice)
    for field in TrainerConfig.model_fields.values()
    for choice in get_args(field.annotation)
    if isinstance(choice, str)
]


@pytest.mark.parametrize(("key", "choice"), CHOICES)
def test_every_choice_can_be_written_without_quotes(key, choice):
    assert ("compile", "auto") in CHOICES
    config = parse_arguments([*DIGITS, "--set", f"{key}={choice}"]).config
    assert config.model_dump(by_alias=True)[key] == choice


MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}
RANK_1 = {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (["--init-method", "tcp://10.0.0.1:4000", "--rank", "1", "--world-size", "2"], {}),
        (["--init-method", "tcp://10.0.0.1:4000"], RANK_1),
        (["--rank", "1", "--world-size", "2"], MASTER),
        ([], {**MASTER, **RANK_1}),
        (["--init-method", "env://"], {**MASTER, **RANK_1}),
        (["--init-method", "tcp://10.0.0.1:4000"], {"MASTER_ADDR": "b", "MASTER_PORT": "5", **RANK_1}),
    ],
)
def test_where_ranks_meet(options, environ):
    found = resolve({**environ, **parse_arguments([*DIGITS, *options]).rendezvous})
    assert (found.rank, found.world_size, found.master_addr, found.master_port) == (1, 2, "10.0.0.1", 4000)


@pytest.mark.parametrize(
    "url", ["tcp://10.0.0.1", "tcp://:4000", "tcp://a:b", "tcp://a:70000", "file:///tmp/x", "tcp://a:1/?rank=0", "a:1"]
)
def test_an_address_that_is_not_one_is_refused(url):
    with pytest.raises(ConfigError, match=r"expected env:// or tcp://HOST:PORT"):
        parse_arguments([*DIGITS, "--init-method", url])


def test_an_address_alone_does_not_make_a_rank():
    with pytest.raises(ConfigError, match="--rank and --world-size"):
        resolve(parse_arguments([*DIGITS, "--init-method", "tcp://10.0.0.1:4000"]).rendezvous)


def test_ranks_get_the_configuration_of_their_launcher():
    given = parse_arguments([*DIGITS, "-e", "3", "--set", "learningRate=0.1", "--rank", "4"])
    again = parse_arguments(given.for_ranks())
    assert again.config == given.config
    assert again.config.model_fields_set == given.config.model_fields_set
    assert not again.rendezvous, "each has its rank from its environment"
