"""Ranks that a launcher has started, for the tests of what it does with them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed import wait_for

LAUNCHER = """
import os, sys
from ddpjob_ranks.launch import identity, launcher
launcher.SURVIVOR_GRACE_SECONDS, launcher.CAUSE_WAIT_SECONDS = 0.5, 60.0
sys.exit(launcher.run(identity.resolve(os.environ), [sys.executable, "-S", "-c", sys.argv[1]], os.environ))
"""


@contextmanager
def launched(script: str, *, ranks: int = 2, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A launcher of ranks that run this script; killed at the end of the context."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, script],
        env={"PYTHONPATH": ":".join(sys.path), "NPROC_PER_NODE": str(ranks), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def exit_code(script: str, **settings: Any) -> int:
    """That of a launcher of ranks that run this script."""
    with launched(script, **settings) as process:
        return process.wait(timeout=60)


def pids_in(folder: Path, count: int) -> list[int]:
    """The pids that ranks wrote as file names, once all of them are there."""
    wait_for(f"{count} ranks in {folder}", lambda: len(list(folder.iterdir())) == count, seconds=30)
    return [int(path.name) for path in folder.iterdir()]
