"""The values that rank 0 reported in all attempts, from one file of JSON lines for each."""

import json
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddpjob_ranks.regular_files import no_link

#: A curve has at most twice this number of points: a longer one keeps each second, third and so on, and its last.
POINTS = 400
#: Of longer lines, and of what follows so many characters of all attempts, nothing is read: others may write in that folder, too.
MAX_LINE = 64 * 1024
MAX_CHARACTERS = 2**26
_FILE = re.compile(r"attempt-(\d{1,9})-values\.jsonl")

#: The part of a run from one start to the next: `attempt`, `first_step`, and in `curves` the points [step, value] by name.
Segment = dict[str, Any]


def file_name(attempt: int) -> str:
    """The name of an attempt's file."""
    return f"attempt-{attempt}-values.jsonl"


def read(folder: Path) -> list[Segment]:
    """The segments of the run that left its files in this folder, oldest first. Lines that the run did not write are left out."""
    files = sorted((int(found[1]), path) for path in folder.iterdir() if (found := _FILE.fullmatch(path.name)))
    segments: list[Segment] = []
    left = MAX_CHARACTERS
    for attempt, path in files:
        with suppress(OSError), open(path, encoding="utf-8", errors="replace", opener=no_link) as lines:
            while left > 0 and (text := lines.readline(MAX_LINE)):
                left -= len(text)
                _take(text, attempt, segments)
    for segment in segments:
        segment["curves"] = {name: _thinned(points) for name, points in segment["curves"].items()}
    return segments


def _take(text: str, attempt: int, segments: list[Segment]) -> None:
    """Add what a line says to the segments."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return
    match line:
        case {"first_step": int(step)}:
            segments.append({"attempt": attempt, "first_step": step, "curves": {}})
        case {"step": int(step), "values": {**values}} if segments:
            for name, value in values.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    segments[-1]["curves"].setdefault(name, []).append([step, value])


def _thinned(points: list[list[float]]) -> list[list[float]]:
    every = max(1, len(points) // POINTS)
    return points[:-1:every] + points[-1:]
