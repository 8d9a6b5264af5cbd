"""The tables of a record, without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.cell import Result
from chaos.matrix import Cell, Fault, Phase
from chaos.record import Record
from chaos.recovery import recovery_in_place


def tables_of(file: Path, **fields: Any) -> list[str]:
    """The tables of a record of one cell of a job that starts again in place."""
    result = Result(fault=Fault.KILL, phase=Phase.STEADY, right=True, attempts=1, in_place=True, tier=1, **fields)
    cell = Cell(Fault.KILL, Phase.STEADY, in_place=True)
    recorded = {**result.as_json(), "load": 1.0, "commit": "1234567"}
    file.write_text(json.dumps({"cells": {cell.name: recorded}}))
    return list(Record(file).tables())


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ({"start": 0.5, "load": 0.1, "rendezvous": 0.1, "first step": 0.3, "total": 1.0}, "lost 0, 1.0 s"),
        (None, "lost 0, -"),
    ],
)
def test_a_recovery_that_was_not_timed_has_no_seconds(
    tmp_path: Path, parts: dict[str, float] | None, shown: str
) -> None:
    tables = tables_of(tmp_path / "record.json", recovery_seconds=parts)
    assert any(shown in line for line in tables if line.startswith("| rank-sigkilled |"))


def test_a_recovery_of_a_job_none_of_whose_ranks_has_run_is_not_timed() -> None:
    assert recovery_in_place({}, fault_at=1.0) is None
