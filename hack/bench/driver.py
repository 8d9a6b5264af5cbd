"""What all benchmarks share: rows that are printed as they come, what failed, trials in turn, and the record at the end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ddpjob_measure import record
from ddpjob_measure.task import MeasureError
from ddpjob_ranks.errors import ConfigError

T = TypeVar("T")


def parser_of(module: str, about: str | None, kind: str) -> argparse.ArgumentParser:
    """The command line of a benchmark, with the options for its record."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.add_options(parser, kind, results=None)
    return parser


class Run:
    """One benchmark under way. Its record, if one is asked for, is written after each row, so a later failure costs nothing."""

    def __init__(self, given: argparse.Namespace, title: str, facts: Mapping[str, Any] | None = None) -> None:
        """Fails before anything is measured if the record cannot be written. The facts are by default those of trainings."""
        self._path = record.path_of(given)
        self._title = title
        self.facts = dict(record.facts() if facts is None else facts)
        self.rows: list[record.Row] = []
        self.notes: list[str] = []
        self.more_tables: list[str] = []
        self.failed = False

    def row(self, **columns: Any) -> None:
        """Add a line to the table."""
        self.add(columns)

    def add(self, row: Mapping[str, Any]) -> None:
        """The same for columns whose names are no identifiers."""
        self.rows.append(row)
        print(record.line(row), file=sys.stderr, flush=True)
        self._save()

    def result(self, what: str, run: Callable[[], T]) -> T | None:
        """What a part gives; None, the error on stderr and a note of it where it fails."""
        print(f"measuring {what} ...", file=sys.stderr, flush=True)
        try:
            return run()
        except (MeasureError, ConfigError) as error:
            print(error, file=sys.stderr)
            first, *others = str(error).strip().splitlines()
            self.notes.append(f"Failed: {what}: {first}" + (f" ... {others[-1].strip()}" if others else ""))
            self.failed = True
            return None

    def end(self) -> int:
        """Print the record; returns the exit code.

        Raises:
            MeasureError: nothing was measured.
        """
        if not self.rows:
            raise MeasureError("\n".join(["nothing was measured", *self.notes]))
        self._save()
        print(self._page(), end="")
        return 1 if self.failed else 0

    def _page(self) -> str:
        return record.page(self._title, self.facts, [record.table(self.rows), *self.more_tables], self.notes)

    def _save(self) -> None:
        if self._path is not None:
            record.save(self._path, self._page(), self.facts, self.rows)


def in_turn(ways: Iterable[str], num_trials: int, trial: Callable[[str], T]) -> Mapping[str, Sequence[T]]:
    """So many trials of each way, in turn, so that other load on the machine meets all of them."""
    found: dict[str, list[T]] = {way: [] for way in ways}
    for number in range(1, num_trials + 1):
        for way, trials in found.items():
            trials.append(trial(way))
            print(f"trial {number}, {way}: {trials[-1]}", file=sys.stderr, flush=True)
    return found
