"""`make demo-recovery` prints what its page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

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


#: Rank 1 waits behind its gate for the kill: otherwise a machine that lets the demonstration wait has trained to the end.
SITE = """
import sys

if "ddpjob_ranks.launch.template" in sys.orig_argv:
    from ddpjob_trainer.data import Feed
    from support.programs import gated_rank

    Feed.batch = gated_rank.batch_behind_a_gate
"""


@pytest.mark.nightly
def test_the_demonstration_prints_a_recovery_without_a_lost_step(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    roots = (tmp_path, *(REPOSITORY / folder for folder in ("operator", "trainer", "tests", "hack")))
    run = subprocess.run(
        [sys.executable, "-m", "bench.recovery.demo"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots)), "GATES": "62", "OPENED": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(LINES, run.stdout), run.stdout
