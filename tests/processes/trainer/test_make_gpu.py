"""`make gpu` from its first line to its last, on CPUs, in an environment that has just torch and what comes with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_measure import carry, gpu_steps


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


IMPORTS = """
import importlib, re, sys
from importlib.metadata import packages_distributions
from ddpjob_measure import carry

carried = {name.partition("==")[0] for group in carry.groups(carry.LOCK.read_text(), "2.11").values() for name in group}
DISTRIBUTIONS = packages_distributions()

class OnlyWhatIsThere:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        of = {re.sub("[_.]", "-", each.lower()) for each in DISTRIBUTIONS.get(name.partition(".")[0], ())} - {"ddpjob"}
        there = not of or any(carry.GIVEN.match(each) and each != "obstore" or each in carried for each in of)
        return self.finder.find_spec(name, path, target) if there else None

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [OnlyWhatIsThere(finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]
import ddpjob_measure.__main__, ddpjob_measure.foreign, ddpjob_measure.killed, ddpjob_measure.measuring
import ddpjob_measure.plain_ddp, ddpjob_measure.session_cost, ddpjob_measure.smoke
import ddpjob_trainer.__main__, ddpjob_trainer.worker
from ddpjob_recipes import NAMES
from ddpjob_trainer import recipes
for recipe in NAMES:
    recipes.find(recipe)
"""


def test_what_runs_on_a_gpu_machine_imports_only_what_it_has_or_is_carried_to_it() -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(carry.__file__).parents[1])}
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
