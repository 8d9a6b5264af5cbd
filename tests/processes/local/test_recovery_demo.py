"""`make demo-recovery` prints what its page says."""

import os
import re
import subprocess
import sys

import pytest

from support import REPOSITORY

#: The lines of the demonstration; times and the accuracy differ.
LINES = r"""two ranks start, each as a process of this machine
step 60 is done; kill -9 of rank 1
 *\S+ s  ddpjob launcher: rank 1 was killed by SIGKILL; all ranks start again in place \(1 of at most 3 times\)
 *\S+ s  resumed from step \d+ in memory: no step is lost
 *\S+ s  step \d+ is done
184 steps in all, 0 of them repeated; accuracy \S+ %
"""


def demonstration() -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(str(REPOSITORY / folder) for folder in ("operator", "trainer", "tests", "hack"))
    return subprocess.run(
        [sys.executable, "-m", "bench.recovery.demo"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.nightly
@pytest.mark.timeout(2000)
def test_the_demonstration_prints_a_recovery_without_a_lost_step() -> None:
    run = demonstration()
    for _ in range(3):  # a machine that lets it wait for a second has trained to the end before the kill
        if "step 184/184" in run.stderr:
            run = demonstration()
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(LINES, run.stdout), run.stdout
