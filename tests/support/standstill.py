"""Ranks that stop making progress: two of which one goes wrong after a few steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpjob_ranks import contract
from support.forked_ranks import ForkedRun, started
from support.programs.faulty_rank import arrange

#: Nothing but gradients is summed over ranks until the fault.
KEYS = ("epochs=2", "logEverySteps=1000")
#: For a fault within the set-up or at the end: where other ranks are then, depends on how fast each of them is.
SHORT = ("firstStepTimeoutSeconds=20", "stepTimeoutSeconds=12")


@contextmanager
def two_ranks(folder: Path, *keys: str, fault: str, faulty_rank: int, check: str = "") -> Iterator[ForkedRun]:
    """Both ranks under way; the fault comes after step 7, or in that check. Both are killed at the end of the block."""
    environ = {"FAULT": fault, "FAULTY_RANK": str(faulty_rank), "FAULT_STEP": "7", "CHECK": check}
    environ[contract.DDPJOB_EVENTS_DIR] = str(folder)
    with started(folder, *KEYS, *(SHORT if check else ()), *keys, ranks=2, environ=environ, first=arrange) as run:
        yield run
