"""A table for people and the same figures as JSON, with the facts that they depend on."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddpjob_measure.surroundings import headline
from ddpjob_measure.task import PARTS, Figures, Spread

PART_TITLES = ("data", "forward and backward", "exposed communication", "optimizer", "host")
assert len(PART_TITLES) == len(PARTS)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def page(title: str, facts: dict[str, Any], tables: Sequence[str], notes: Sequence[str] = ()) -> str:
    """The whole record as Markdown."""
    listed = "\n".join(f"- {note}" for note in notes)
    return "\n\n".join([f"# {title}", headline(facts), *tables, *([listed] if notes else [])]) + "\n"


def save(path: Path, text: str, facts: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write `<path>.md` and `<path>.json`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".md").write_text(text, encoding="utf-8")
    record = {"surroundings": facts, "rows": list(rows)}
    path.with_name(path.name + ".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def as_row(figures: Figures, **about: Any) -> dict[str, Any]:
    """A row of the JSON: what was measured, then its figures."""
    return {**about, **asdict(figures)}


def with_spread(spread: Spread, scale: float = 1.0) -> str:
    """`median (low to high)`."""
    return f"{number(spread.median * scale)} ({number(spread.low * scale)} to {number(spread.high * scale)})"


def parts_in_milliseconds(figures: Figures) -> list[str]:
    """The medians of the five parts."""
    return [number(figures.part_seconds[part].median * 1e3) for part in PARTS]


def number(value: float) -> str:
    """Three significant digits or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
