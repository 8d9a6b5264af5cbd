"""The benchmark of restarts measures each way of starting again."""

import os
import re
import subprocess
import sys

import pytest


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_each_way_of_starting_again_is_measured() -> None:
    command = [sys.executable, "-m", "bench.recovery", "--trials", "1"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=1100, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    repeated = dict(re.findall(r"^\| (\w+(?: \d)?) \|.*\| (\d+) \|$", run.stdout, re.MULTILINE))
    assert repeated.keys() == {"tier 1", "spare", "tier 2", "tier 3", "torchrun"}, run.stdout
    assert repeated["tier 1"] == repeated["spare"] == repeated["tier 2"] == "0"
