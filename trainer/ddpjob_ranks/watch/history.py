"""The values that rank 0 reported in all attempts, from one file of JSON lines for each."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: A curve has at most twice this number of points: a longer one keeps each second, third and so on, and its last.
POINTS = 400
_FILE = re.compile(r"attempt-(\d+)-values\.jsonl")

#: The part of a run from one start to the next: `attempt`, `first_step`, and in `curves` the points [step, value] by name.
Segment = dict[str, Any]


def file_name(attempt: int) -> str:
    """The name of an attempt's file."""
    return f"attempt-{attempt}-values.jsonl"


def read(folder: Path) -> list[Segment]:
    """The segments of the run that left its files in this folder, oldest first. Lines that were cut are left out."""
    files = sorted((int(found[1]), path) for path in folder.iterdir() if (found := _FILE.fullmatch(path.name)))
    segments: list[Segment] = []
    for attempt, path in files:
        for line in _lines_of(path):
            if "first_step" in line:
                segments.append({"attempt": attempt, "first_step": line["first_step"], "curves": {}})
            elif segments:
                for name, value in line["values"].items():
                    segments[-1]["curves"].setdefault(name, []).append([line["step"], value])
    for segment in segments:
        segment["curves"] = {name: _thinned(points) for name, points in segment["curves"].items()}
    return segments


def _lines_of(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for text in lines:
            try:
                yield json.loads(text)
            except ValueError:
                continue


def _thinned(points: list[list[float]]) -> list[list[float]]:
    every = max(1, len(points) // POINTS)
    return points[:-1:every] + points[-1:]
