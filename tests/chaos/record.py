"""The record of a run: one JSON file that grows by a cell at a time, and a table of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chaos.cell import Result
from chaos.matrix import MATRIX, MATRIX_IN_PLACE, Cell, Phase


class Record:
    """Results by cell, kept in a file after each one, so that a run can be continued."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.cells: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}

    def right(self, cell: Cell) -> bool | None:
        """Whether the cell's recorded outcome is right; None if it has none."""
        found = self.cells.get(cell.name)
        return None if found is None else not found["wrong"]

    def keep(self, cell: Cell, result: Result, commit: str) -> None:
        """Record a cell, with the version that it ran on."""
        self.cells[cell.name] = {**dataclasses.asdict(result), "commit": commit}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.cells, indent=1) + "\n")

    def table(self) -> Iterator[str]:
        """The record for people, in Markdown: a row for each fault, a column for each phase."""
        yield "ok or WRONG; attempts; tier (1 the ranks in their pods, 2 one pod, 3 the gang); the first failure; optimizer"
        yield "steps done twice; seconds until all ranks had done a step again."
        yield ""
        yield f"| fault | {' | '.join(Phase)} |"
        yield f"|{' --- |' * (len(Phase) + 1)}"
        for in_place, matrix in ((False, MATRIX), (True, MATRIX_IN_PLACE)):
            for fault in matrix:
                cells = (Cell(fault, phase, in_place=in_place) for phase in Phase)
                name = f"{'in place: ' if in_place else ''}{fault}"
                yield f"| {name} | {' | '.join(map(self._outcome, cells))} |"
        yield from (f"- {name}: {cell['wrong']}" for name, cell in self.cells.items() if cell["wrong"])

    def _outcome(self, cell: Cell) -> str:
        found = self.cells.get(cell.name)
        if found is None:
            return "" if cell.allowed else f"n/a: {cell.why_not}"
        seen, seconds = found["outcome"], found["trains_again_seconds"]
        if not seen["tier"]:
            return "**WRONG**" if found["wrong"] else "ok, no restart"
        timed = "" if seconds is None else f", {seconds:.1f} s"
        return (
            f"{'**WRONG**' if found['wrong'] else 'ok'}, {seen['attempts']}, tier {seen['tier']},"
            f" {seen['reason'] or 'resumed'}, lost {seen['steps_lost']}{timed}"
        )
