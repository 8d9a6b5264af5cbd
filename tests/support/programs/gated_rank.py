"""A trainer whose last rank waits before chosen steps: what a test does there comes at that step on every machine.

It is started by `ddpjob.launch`, as a program of its own.

GATES are these steps, separated by commas, one for each generation. The rank waits until the test calls
`open_gate`. Two steps after a step that is logged, rank 0 has printed its line: it is in the step before the gate, or at the gate.
"""

import os
import sys
import time
from pathlib import Path

from ddpjob_trainer import __main__
from ddpjob_trainer.data import Feed

BATCH = Feed.batch
FILE = __file__


def open_gate(folder: Path, step: int) -> None:
    """Let the step begin, for ranks whose variable OPENED is this folder."""
    _key(folder, step).touch()


def _key(folder: Path, step: int) -> Path:
    return folder / f"step-{step}-may-begin"


def batch_behind_a_gate(feed: Feed, step: int) -> object:
    """`Feed.batch`, once the gate is open. Threads of this rank run meanwhile, unlike those of a stopped process."""
    gates = os.environ.get("GATES", "").split(",")
    number = int(os.environ.get("DDPJOB_GENERATION", "1"))
    is_last = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
    if is_last and number <= len(gates) and str(step) == gates[number - 1]:
        print(f"gate at step {step}", flush=True)
        while not _key(Path(os.environ["OPENED"]), step).exists():
            time.sleep(0.005)
    return BATCH(feed, step)


if __name__ == "__main__":
    Feed.batch = batch_behind_a_gate  # type: ignore[method-assign, assignment]  # that is the gate
    sys.exit(__main__.main(sys.argv[1:]))
