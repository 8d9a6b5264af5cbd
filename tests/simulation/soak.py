"""Runs schedules for hours: `python -m simulation.soak --schedules 100000`, with PYTHONPATH=operator:trainer:tests."""

import argparse
import random
import sys
import time
from collections import Counter

from simulation.campaign import explore, table
from simulation.invariants.checker import Violation
from simulation.schedule import FOCUSES

#: Each batch has a seed of its own, so that a violation is found again within minutes.
BATCH = 500


def main() -> int:
    """0 if every schedule kept every invariant, 1 with its story if one did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the first batch")
    arguments = parser.parse_args()
    seen: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(-(-arguments.schedules // BATCH)):
        seed = arguments.seed + number
        focus = tuple(FOCUSES)[seed % len(FOCUSES)]
        print(
            f"{time.monotonic() - began:8.0f} s, {seen['schedules']:7} schedules; next seed: {seed} ({focus})",
            flush=True,
        )
        try:
            seen += explore(min(BATCH, arguments.schedules - number * BATCH), seed, focus)
        except Violation as violation:
            print("\n".join([*getattr(violation, "__notes__", ()), f"VIOLATION: {violation}"]))
            print(f"again: python -m simulation.soak --schedules {BATCH} --seed {seed}")
            return 1
    print(table(seen))
    print(
        f"{seen['schedules']} schedules in {time.monotonic() - began:.0f} s, first seed {arguments.seed}: all invariants held"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
