"""The command line: the configuration, and the address of the rendezvous if no launcher sets it."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_trainer import recipe_names
from ddpjob_trainer.config import TrainerConfig, parse_config

#: Short options of common DDP scripts, and the configuration key that each of them sets.
SHORT_OPTIONS = (
    ("-b", "--batch-size", "globalBatchSize", "samples in one optimizer step over all ranks"),
    ("-e", "--epochs", "epochs", "passes over the training data"),
    ("-c", "--checkpoint", "initialCheckpoint", "file with the initial weights"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The parsed command line.

    Attributes:
        config: What to train.
        rendezvous: Variables for `identity.resolve`, such as MASTER_ADDR. They replace those of the environment.
    """

    config: TrainerConfig
    rendezvous: Mapping[str, str]

    def for_ranks(self) -> list[str]:
        """The arguments for a rank, which gets `rendezvous` by its environment."""
        return ["--config-json", self.config.model_dump_json(by_alias=True, exclude_unset=True)]


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line: `--config`, then `--config-json`, each `--set` and short options; for each key the last one wins.

    Raises:
        ConfigError: one line for each mistake.
    """
    given = _parser().parse_args(arguments)
    values: dict[str, Any] = {}
    if given.config is not None:
        with _refused(source := f"--config {given.config}", "cannot be read"):
            content = yaml.safe_load(given.config.read_text(encoding="utf-8"))
        values.update(_mapping(content, source))
    if given.config_json is not None:
        with _refused("--config-json", "is not valid JSON"):
            content = json.loads(given.config_json)
        values.update(_mapping(content, "--config-json"))
    for assignment in given.set:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: expected KEY=VALUE, for example --set epochs=3")
        with _refused(f"--set {assignment}", "is not valid YAML"):
            value = yaml.safe_load(text)
        _set(values, key.split("."), value)
    values.update({key: value for _, _, key, _ in SHORT_OPTIONS if (value := getattr(given, key)) is not None})
    config = parse_config(values)
    recipe_names.locate(config.recipe)
    return Arguments(config=config, rendezvous=_rendezvous(given))


def _set(values: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Set the value of a key such as settings.width, and keep what else is set in `settings`."""
    *outer, last = path
    for key in outer:
        inner = values.get(key)
        values[key] = inner if isinstance(inner, dict) else {}
        values = values[key]
    values[last] = value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ddpjob_trainer",
        description="Train a recipe with PyTorch DDP: alone, under torchrun, under srun or in a DDPJob.",
        epilog="Keys are those of spec.trainer, for example: --set recipe=digits --set epochs=3 --set settings.width=64",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML or JSON file with the configuration")
    parser.add_argument("--config-json", metavar="JSON", help="the configuration as one JSON object")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set one key; can be repeated")
    for short, long, key, meaning in SHORT_OPTIONS:
        parser.add_argument(short, long, dest=key, metavar="VALUE", help=f"{meaning} ({key})")
    parser.add_argument(
        "--init-method",
        default="env://",
        metavar="URL",
        help="address of the rendezvous: env:// (the default: MASTER_ADDR and MASTER_PORT) or tcp://HOST:PORT",
    )
    parser.add_argument("--rank", metavar="N", help="rank of this process, if no launcher sets RANK")
    parser.add_argument("--world-size", metavar="N", help="number of processes, if no launcher sets WORLD_SIZE")
    return parser


def _rendezvous(given: argparse.Namespace) -> dict[str, str]:
    rendezvous = {contract.RANK: given.rank, contract.WORLD_SIZE: given.world_size}
    if given.init_method != "env://":
        try:
            url = urlsplit(given.init_method)
            host, port = url.hostname, url.port
        except ValueError:
            host, port = None, None
        if not (host and port) or given.init_method != f"tcp://{url.netloc}":
            raise ConfigError(f"--init-method {given.init_method}: expected env:// or tcp://HOST:PORT")
        rendezvous |= {contract.MASTER_ADDR: host, contract.MASTER_PORT: str(port)}
    return {name: value for name, value in rendezvous.items() if value is not None}


@contextmanager
def _refused(source: str, problem: str) -> Iterator[None]:
    """What cannot be read or parsed is a mistake of the user."""
    try:
        yield
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: {problem}: {' '.join(str(error).split())}") from None


def _mapping(content: object, source: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: found {type(content).__name__}; expected a mapping of keys such as recipe")
    return content
