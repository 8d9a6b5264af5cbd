"""The record of a run: one JSON file that grows by a cell at a time, and the tables made from it."""

from __future__ import annotations

import datetime
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.cell import Result
from chaos.matrix import CELLS, MATRIX, MATRIX_IN_PLACE, Cell, Phase
from chaos.recovery import PARTS, PARTS_IN_PLACE


class Record:
    """Results by cell, kept in a file after each one, so that a run can be continued."""

    def __init__(self, file: Path) -> None:
        self.file = file
        content = json.loads(file.read_text()) if file.exists() else {}
        self.conditions: dict[str, str] = content.get("conditions", {})
        self.cells: dict[str, dict[str, Any]] = content.get("cells", {})

    def right(self, cell: Cell) -> bool | None:
        """Whether the cell's recorded outcome is right; None if it has none."""
        found = self.cells.get(cell.name)
        return None if found is None else bool(found["right"])

    def keep(self, cell: Cell, result: Result, conditions: Mapping[str, str]) -> None:
        """Record a cell, with the version that it ran on."""
        self.conditions = {**conditions, **_machine()}
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        load = round(os.getloadavg()[0], 1)
        self.cells[cell.name] = {**result.as_json(), "load": load, "at": at, "commit": conditions["ddpjob"]}
        self.save()

    def save(self) -> None:
        """Write the JSON file and the tables next to it."""
        order = {cell.name: number for number, cell in enumerate(CELLS)}
        self.cells = dict(sorted(self.cells.items(), key=lambda item: order[item[0]]))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"conditions": self.conditions, "cells": self.cells}, indent=1)
        self.file.write_text(text + "\n")
        self.file.with_suffix(".md").write_text("\n".join(self.tables()) + "\n")

    def tables(self) -> Iterator[str]:
        """The record for people."""
        recorded = list(self.cells.values())
        num_right = sum(cell["right"] for cell in recorded)
        kinds = {cell["in_place"] for cell in recorded}
        num_cells = sum(bool(cell.allowed) for cell in CELLS if cell.in_place in kinds)
        yield "# Faults at every phase of a job, on real nodes"
        yield ""
        yield f"{num_right} of {num_cells} cells right, {len(recorded) - num_right} wrong, {num_cells - len(recorded)} not run."
        shown = {name: value for name, value in self.conditions.items() if name != "ddpjob"}
        yield "; ".join(f"{name} {value}" for name, value in shown.items()) + "."
        commits = Counter(cell["commit"] for cell in recorded)
        loads = sorted(cell["load"] for cell in recorded) or [0.0]
        yield f"Cells by commit: {', '.join(f'{commit} {number}' for commit, number in commits.most_common())}."
        yield f"Load of the machine (1 minute): median {loads[len(loads) // 2]}, most {loads[-1]}."
        yield "A job: 2 ranks on 2 nodes, 92 steps, a checkpoint every 20 steps and after every 23rd."
        yield ""
        for in_place in sorted(kinds):
            yield from self._outcomes(in_place=in_place)
        yield "## Time to recover, in seconds"
        yield ""
        yield "From the fault until every rank of the next attempt has done a step; each column is the time since the one before."
        yield ""
        timed = [cell for cell in recorded if cell["recovery_seconds"]]
        yield from _recovery_table(PARTS, (cell for cell in timed if "detect" in cell["recovery_seconds"]))
        yield ""
        yield "The same where the ranks start again in their pods, or in one that is replaced."
        yield ""
        yield from _recovery_table(PARTS_IN_PLACE, (cell for cell in timed if "detect" not in cell["recovery_seconds"]))
        facts = [cell for cell in recorded if cell["facts_seconds"]]
        if facts:
            yield ""
            yield "## What else was timed, in seconds"
            yield ""
            yield from _table(["fault", "phase", "what"], (_facts_row(cell) for cell in facts))
        wrong = [cell for cell in recorded if not cell["right"]]
        if wrong:
            yield ""
            yield "## Wrong"
            yield ""
            for cell in wrong:
                yield f"- {_named(cell)}, {cell['phase']}: {cell['wrong']}"
        yield ""
        yield "## Cells that make no sense"
        yield ""
        yield from (
            f"- {'in place: ' if cell.in_place else ''}{cell.fault}, {cell.phase}: {cell.why_not}"
            for cell in CELLS
            if not cell.allowed
        )

    def _outcomes(self, *, in_place: bool) -> Iterator[str]:
        yield f"## Outcome{' with restart.inPlace' if in_place else ''}"
        yield ""
        tier = " tier (1 the ranks in their pods, 2 one pod, 3 the gang);" if in_place else ""
        yield (
            f"ok or WRONG; attempts;{tier} reason of the first attempt's end; optimizer steps done twice; seconds to train again."
        )
        yield ""
        cells = {(cell.fault, cell.phase): cell for cell in CELLS if cell.in_place == in_place}
        phases = [phase for phase in Phase if any(cell[1] == phase for cell in cells)]
        rows = MATRIX_IN_PLACE if in_place else MATRIX
        yield from _table(["fault", *phases], ([f, *(self._outcome(cells[f, p]) for p in phases)] for f in rows))
        yield ""

    def _outcome(self, cell: Cell) -> str:
        if not cell.allowed:
            return "n/a"
        found = self.cells.get(cell.name)
        if found is None:
            return ""
        right = "ok" if found["right"] else "**WRONG**"
        tier = found.get("tier", 0)
        if found["attempts"] == 1 and not tier:
            return f"{right}, no restart"
        reason = found["reason"] or "resumed"
        # Not timed if not all ranks had to start again, for instance since one was still looking for the other.
        parts = found["recovery_seconds"]
        seconds = f"{parts['total']:.1f} s" if parts else "-"
        shown = f"{found['attempts']}{f', tier {tier}' if cell.in_place else ''}"
        return f"{right}, {shown}, {reason}, lost {found['steps_lost']}, {seconds}"


def _recovery_table(parts: Sequence[str], cells: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    rows = (
        [_named(cell), cell["phase"], *(f"{cell['recovery_seconds'][name]:.2f}" for name in (*parts, "total"))]
        for cell in cells
    )
    yield from _table(["fault", "phase", *parts, "total"], rows)


def _named(cell: Mapping[str, Any]) -> str:
    return f"{'in place: ' if cell.get('in_place') else ''}{cell['fault']}"


def _facts_row(cell: Mapping[str, Any]) -> list[str]:
    facts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in cell["facts_seconds"].items())
    return [_named(cell), cell["phase"], facts]


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    header = list(header)
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _machine() -> dict[str, str]:
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    memory_kib = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "CPU": f"{os.cpu_count()} x {model.partition(':')[2].strip()}",
        "memory": f"{int(memory_kib.split()[1]) / 2**20:.0f} GiB",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
