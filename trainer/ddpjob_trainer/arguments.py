"""The command line: where the configuration comes from."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ddpjob_trainer.config import ConfigError, TrainerConfig, parse_config


def parse_arguments(arguments: Sequence[str]) -> TrainerConfig:
    """The configuration from `--config`, then `--config-json`, then each `--set`; later ones win, key by key.

    Raises:
        ConfigError: one line for each mistake.
    """
    parser = argparse.ArgumentParser(
        prog="python -m ddpjob_trainer",
        description="Train a built-in recipe with PyTorch DDP: alone, under torchrun, under srun or in a DDPJob.",
        epilog="Keys are those of spec.trainer, for example: --set recipe=digits --set epochs=3",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML or JSON file with the configuration")
    parser.add_argument("--config-json", metavar="JSON", help="the configuration as one JSON object")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set one key; repeatable")
    given = parser.parse_args(arguments)

    values: dict[str, Any] = {}
    if given.config is not None:
        values.update(_from_file(given.config))
    if given.config_json is not None:
        values.update(_from_json(given.config_json))
    for assignment in given.set:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: expected KEY=VALUE, for example --set epochs=3")
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {assignment}: is no YAML: {' '.join(str(error).split())}") from None
    return parse_config(values)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: cannot be read: {' '.join(str(error).split())}") from None
    return _mapping(content, f"--config {path}")


def _from_json(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--config-json: is no JSON: {error}") from None
    return _mapping(content, "--config-json")


def _mapping(content: object, source: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: found {type(content).__name__}; expected a mapping of keys such as recipe")
    return content
