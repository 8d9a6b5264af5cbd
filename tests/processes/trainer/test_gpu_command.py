"""`make gpu` from its first line to its last, on CPUs, in an environment that has just torch and what comes with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_measure import gpu_steps


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_all_steps_run_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddpjob_measure", "gpu", "--device", "cpu", "--quick", "--seconds", "1700"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path), "--name", "quick"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = json.loads((tmp_path / "quick.json").read_text())["rows"]
    assert {row["name"]: row["status"] for row in rows} == {step.name: "ok" for step in gpu_steps.STEPS}, done.stderr
    assert done.returncode == 0
    assert all(row["rows"] for row in rows)
