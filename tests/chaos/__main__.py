"""`python -m chaos`: run the matrix, or a part of it, and continue where an earlier run ended."""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import testbed
from chaos import cell as cells
from chaos.laboratory import Laboratory, laboratory
from chaos.matrix import CELLS, CLUSTER_WIDE, Cell, Fault, Phase
from chaos.record import Record
from support import REPOSITORY


class Run:
    """The cells of one run, job-local ones side by side, cluster-wide ones alone."""

    def __init__(self, lab: Laboratory, record: Record, *, end: float) -> None:
        self._lab, self._record, self._end = lab, record, end
        self._keeping = threading.Lock()  # two cells may end at the same time
        described = ["git", "describe", "--always", "--dirty"]
        self._commit = subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()

    def all_of(self, wanted: Sequence[Cell], *, num_parallel: int) -> None:
        """Run these cells in order until all are done or the time is up."""
        for alone, group in itertools.groupby(wanted, key=lambda cell: cell.fault in CLUSTER_WIDE):
            with concurrent.futures.ThreadPoolExecutor(1 if alone else num_parallel) as pool:
                for result in [pool.submit(self._one, cell) for cell in group]:
                    result.result()

    def _one(self, cell: Cell) -> None:
        if time.monotonic() > self._end:
            return
        began = time.monotonic()
        result = cells.run(self._lab, cell)
        if cell.fault in CLUSTER_WIDE:
            self._lab.repair()
        if cell.fault in (Fault.OPERATOR, Fault.LEADER):
            self._lab.renew_operators()
        with self._keeping:
            self._record.keep(cell, result, self._commit)
            outcome = f"WRONG: {result.wrong}" if result.wrong else "right"
            again = result.trains_again_seconds
            timed = "no restart" if again is None else f"trains again after {again:.2f} s"
            seconds = time.monotonic() - began
            print(f"{cell.name:<35} {outcome}; {result.outcome.shown}; {timed}; cell {seconds:.0f} s", flush=True)


def _arguments() -> argparse.Namespace:
    today = datetime.datetime.now(datetime.UTC).date()
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--faults", nargs="+", type=Fault, choices=list(Fault), default=list(Fault), metavar="FAULT")
    parser.add_argument("--phases", nargs="+", type=Phase, choices=list(Phase), default=list(Phase), metavar="PHASE")
    kinds = {"all": (False, True), "plain": (False,), "in-place": (True,)}
    parser.add_argument("--jobs", choices=kinds, default="all", help="with restart.inPlace or not")
    record = REPOSITORY / "build" / f"chaos-{today}.json"
    parser.add_argument("--record", type=Path, default=record, help="continued if it is there")
    again = {"nothing": (None,), "wrong": (None, False), "all": (None, False, True)}
    parser.add_argument("--again", choices=again, default="nothing", help="which recorded cells to run again")
    parser.add_argument("--parallel", type=int, default=2, help="jobs side by side, where a fault touches one job only")
    parser.add_argument("--replicas", type=int, default=2, help="of the operator")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no cell after so long")
    arguments = parser.parse_args()
    arguments.jobs, arguments.again = kinds[arguments.jobs], again[arguments.again]
    return arguments


def main() -> int:
    """Run what is asked for; 0 if every one of those cells is recorded as right."""
    given = _arguments()
    record = Record(given.record)
    asked = [
        cell
        for cell in CELLS
        if cell.allowed and cell.fault in given.faults and cell.phase in given.phases and cell.in_place in given.jobs
    ]
    wanted = [cell for cell in asked if record.right(cell) in given.again]
    print(f"chaos: {len(wanted)} cells to run of {len(asked)} asked for", flush=True)
    if wanted:
        end = time.monotonic() + 60 * given.minutes
        with testbed.Cluster(nodes=2) as cluster, laboratory(cluster, replicas=given.replicas) as lab:
            Run(lab, record, end=end).all_of(wanted, num_parallel=given.parallel)
    print("\n".join(record.table()))
    return 0 if all(record.right(cell) for cell in asked) else 1


if __name__ == "__main__":
    sys.exit(main())
