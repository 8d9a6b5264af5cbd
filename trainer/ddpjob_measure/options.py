"""Options that several commands share."""

import argparse
import datetime
from itertools import count
from pathlib import Path

from ddpjob_ranks.errors import ConfigError


def positive(text: str) -> int:
    """An option's value: an integer of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text}; expected an integer of 1 or more")
    return int(text)


def add_record(parser: argparse.ArgumentParser, kind: str) -> None:
    """Options for the place of a measurement's record; `record_path` reads them."""
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    parser.add_argument(
        "--name", help=f"name of the record's files (default: {kind}-{today}, with a number if that exists)"
    )
    parser.add_argument("--results", type=Path, default=Path(), help="folder of the record (default: the current one)")
    parser.set_defaults(default_name=f"{kind}-{today}")


def record_path(given: argparse.Namespace) -> Path:
    """The record's path without suffix, in a folder that exists: to be called before a long measurement.

    Raises:
        ConfigError: the folder cannot be made.
    """
    try:
        given.results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--results {given.results}: cannot be created: {error.strerror}") from error
    names = (given.default_name + (f"-{number}" if number > 1 else "") for number in count(1))
    free = (name for name in names if not (given.results / f"{name}.json").exists())
    return Path(given.results / (given.name or next(free)))
