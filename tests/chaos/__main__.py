"""`python -m chaos`: run the matrix, or a part of it, and continue where an earlier run ended."""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import itertools
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from chaos import cell as cells
from chaos.cell import Result
from chaos.laboratory import Laboratory
from chaos.matrix import CELLS, CLUSTER_WIDE, Cell, Fault, Phase
from chaos.record import Record
from support import REPOSITORY

RESULTS = REPOSITORY / "hack" / "bench" / "results"


class Run:
    """The cells of one run, job-local ones side by side, cluster-wide ones alone."""

    def __init__(self, laboratory: Laboratory, record: Record, *, end: float) -> None:
        self._laboratory = laboratory
        self._record = record
        self._end = end
        self._keeping = threading.Lock()  # two cells may end at the same time
        self._conditions = laboratory.versions()

    def all_of(self, wanted: Sequence[Cell], *, num_parallel: int) -> None:
        """Run these cells in order until all are done or the time is up."""
        for alone, group in itertools.groupby(wanted, key=lambda cell: cell.fault in CLUSTER_WIDE):
            with concurrent.futures.ThreadPoolExecutor(1 if alone else num_parallel) as pool:
                for result in [pool.submit(self._one, cell) for cell in group]:
                    result.result()

    def _one(self, cell: Cell) -> None:
        if time.monotonic() > self._end:
            return
        result = cells.run(self._laboratory, cell)
        if cell.fault in CLUSTER_WIDE:
            self._laboratory.repair()
        if cell.fault in (Fault.OPERATOR, Fault.LEADER):
            self._laboratory.renew_operators()
        with self._keeping:
            self._record.keep(cell, result, self._conditions)
            print(_line(result), flush=True)


def _line(result: Result) -> str:
    parts = result.recovery_seconds
    recovered = " ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items()) if parts else "no restart"
    facts = "".join(f"; {name} {seconds:.2f}" for name, seconds in result.facts_seconds.items())
    outcome = "right" if result.right else f"WRONG: {result.wrong}"
    job = "in place: " if result.in_place else ""
    return (
        f"{job}{result.fault:<20} {result.phase:<13} {outcome}; tier {result.tier}, attempts {result.attempts}, reason {result.reason},"
        f" steps lost {result.steps_lost}; {recovered}{facts}; cell {result.seconds:.0f} s"
    )


def _arguments() -> argparse.Namespace:
    today = datetime.datetime.now(datetime.UTC).date()
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--faults", nargs="+", type=Fault, choices=list(Fault), default=list(Fault), metavar="FAULT")
    parser.add_argument("--phases", nargs="+", type=Phase, choices=list(Phase), default=list(Phase), metavar="PHASE")
    parser.add_argument(
        "--jobs", choices=["all", "plain", "in-place"], default="all", help="with restart.inPlace or not"
    )
    parser.add_argument("--record", type=Path, default=RESULTS / f"chaos-{today}.json", help="continued if it is there")
    parser.add_argument(
        "--again",
        choices=["nothing", "wrong", "all"],
        default="nothing",
        help="which recorded cells to run again (default: nothing)",
    )
    parser.add_argument("--parallel", type=int, default=2, help="jobs side by side, where a fault touches one job only")
    parser.add_argument("--replicas", type=int, default=2, help="of the operator")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no cell after so long")
    return parser.parse_args()


def main() -> int:
    """Run what is asked for; 0 if every one of those cells is recorded as right."""
    arguments = _arguments()
    record = Record(arguments.record)
    asked = [
        cell
        for cell in CELLS
        if cell.allowed and cell.fault in arguments.faults and cell.phase in arguments.phases
        if arguments.jobs == "all" or cell.in_place == (arguments.jobs == "in-place")
    ]
    again = {"nothing": (None,), "wrong": (None, False), "all": (None, False, True)}[arguments.again]
    wanted = [cell for cell in asked if record.right(cell) in again]
    print(f"chaos: {len(wanted)} cells to run of {len(asked)} asked for", flush=True)
    if wanted:
        end = time.monotonic() + 60 * arguments.minutes
        with Laboratory(replicas=arguments.replicas) as laboratory:
            Run(laboratory, record, end=end).all_of(wanted, num_parallel=arguments.parallel)
    print("\n".join(record.tables()))
    return 0 if all(record.right(cell) for cell in asked) else 1


if __name__ == "__main__":
    sys.exit(main())
