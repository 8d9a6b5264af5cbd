"""What was measured, as a table for people and as JSON, with the machine and the versions that it depends on."""

import argparse
import datetime
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

from ddpjob_measure.task import Spread
from ddpjob_ranks.cpus import available_cpus
from ddpjob_ranks.errors import ConfigError

#: One line of a table. The first line with a column decides its place.
Row = Mapping[str, Any]
#: What figures of trainings depend on.
PACKAGES = ("torch", "torchvision", "numpy")


def facts(packages: Iterable[str] = PACKAGES) -> dict[str, Any]:
    """Date, load, hardware and versions, for the head of a table and for its JSON."""
    packages = tuple(packages)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "cpu": _first(r"model name\s*: (.*)", "/proc/cpuinfo") or platform.machine(),
        "cores": available_cpus(),
        "memory_gib": round(int(_first(r"MemTotal:\s+(\d+)", "/proc/meminfo") or 0) / 2**20),
        "kernel": platform.release(),
        **({"gpus": _gpus()} if "torch" in packages else {}),
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
    }


def _gpus() -> str:
    import torch  # benchmarks of the operator do without

    return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())) or "none"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # copied to the machine without its metadata
        return "unknown"


def _first(pattern: str, path: str) -> str | None:
    match = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    return match[1] if match else None


def table(rows: Sequence[Row]) -> str:
    """Markdown, with a column for each key of the rows."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    lines = [header, ["---"] * len(header), *([cell(row.get(name, "")) for name in header] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value: object) -> str:
    """A value as text: numbers with three or four significant digits, or all before the point, and a spread with its extremes."""
    if isinstance(value, Spread):
        return f"{cell(value.median)} ({cell(value.low)} to {cell(value.high)})"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value).replace("|", "/").replace("\n", " ")


def line(row: Row) -> str:
    """A row as one line of output."""
    return ", ".join(f"{name} {cell(value)}" for name, value in row.items())


def page(title: str, facts: Mapping[str, Any], tables: Sequence[str], notes: Sequence[str] = ()) -> str:
    """The whole record as Markdown."""
    listed = "\n".join(f"- {note}" for note in notes)
    headline = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    return "\n\n".join([f"# {title}", headline, *tables, *([listed] if notes else [])]) + "\n"


def save(path: Path, text: str, facts: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write `<path>.md` and `<path>.json`, each as a whole, so that none is cut off in the middle."""
    content = json.dumps({"surroundings": facts, "rows": rows}, indent=1, default=Spread.to_json)
    for suffix, written in ((".md", text), (".json", content + "\n")):
        new = path.with_name(f".{path.name}{suffix}")
        new.write_text(written, encoding="utf-8")
        new.replace(f"{path}{suffix}")


def add_options(parser: argparse.ArgumentParser, kind: str, *, results: Path | None) -> None:
    """Options for the place of the record, by default in `results`; `path_of` reads them."""
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    default = "it is only printed" if results is None else "the current one"
    parser.add_argument("--results", type=Path, default=results, help=f"folder of the record (default: {default})")
    parser.add_argument(
        "--name", help=f"name of the record's files (default: {kind}-{today}, with a number if that exists)"
    )
    parser.set_defaults(default_name=f"{kind}-{today}")


def path_of(given: argparse.Namespace) -> Path | None:
    """The record's path without suffix, in a folder that exists: to be called before a long measurement.

    Raises:
        ConfigError: the folder cannot be made.
    """
    if given.results is None:
        return None
    try:
        given.results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--results {given.results}: cannot be created: {error.strerror}") from error
    names = (given.default_name + (f"-{number}" if number > 1 else "") for number in count(1))
    free = (name for name in names if not (given.results / f"{name}.json").exists())
    return Path(given.results / (given.name or next(free)))


def positive(text: str) -> int:
    """An option's value: an integer of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text}; expected an integer of 1 or more")
    return int(text)
