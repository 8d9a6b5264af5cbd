"""Each benchmark gives the figures that it lists, here of very little. No test asserts how fast anything is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "trainer", "tests", "hack"))
TINY = "--singles 2 --failures 1 --storm-jobs 3 --storm-pods 2 --idle-seconds 1 --many-jobs 4 --many-pods 2"


def printed(folder: Path, command: str) -> str:
    """What a command prints, which ends with the record that it leaves in this folder."""
    arguments = [sys.executable, "-m", *command.split(), "--results", str(folder), "--name", "tiny"]
    environ = {**os.environ, "PYTHONPATH": PATH}
    run = subprocess.run(arguments, env=environ, capture_output=True, text=True, timeout=1100, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith((folder / "tiny.md").read_text())
    return run.stdout


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("speed --recipes digits --ranks 2 --profiles fast --steps 2 --windows 2 --keys bucketCapMb=1", 2),
        ("accuracy --seeds 0 1 --set epochs=2 --set globalBatchSize=512 --target 50 99", 3),
        ("overhead", 9),
    ],
)
def test_each_benchmark_of_the_trainer_has_its_rows_and_names_the_machine(
    command: str, rows: int, tmp_path: Path
) -> None:
    printed(tmp_path, f"bench.trainer {command}")
    record = json.loads((tmp_path / "tiny.json").read_text())
    assert {"date", "cpu", "cores", "gpus", "torch", "load_average_at_start"} <= record["surroundings"].keys()
    assert len(record["rows"]) == rows


@pytest.mark.nightly
def test_every_measure_of_the_operator_gives_its_figures(tmp_path: Path) -> None:
    output = printed(tmp_path, f"bench.operators {TINY}")
    record = json.loads((tmp_path / "tiny.json").read_text())
    assert {"date", "cpu", "cores", "cluster", "python", "kopf"} <= record["surroundings"].keys()
    figures = {row["measure"]: row["value"] for row in record["rows"]}
    assert figures["3 jobs x 2 pods at once: pods"] > 0
    assert figures["a bare client's storm: pods"] > 0
    assert figures["failed reconciles"] == 0
    assert figures["writes of a restarted operator"] == 0
    for what in ("a job created", "a pod fails", "operator CPU", "memory", "jobs finished", "requests per job"):
        assert any(what in measure for measure in figures), output


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_each_way_of_starting_again_is_measured(tmp_path: Path) -> None:
    output = printed(tmp_path, "bench.recovery --trials 1")
    repeated = dict(re.findall(r"^\| (\w+(?: \d)?) \|.*\| (\d+) \|$", output, re.MULTILINE))
    assert repeated.keys() == {"tier 1", "tier 2", "tier 3", "torchrun"}, output
    assert repeated["tier 1"] == repeated["tier 2"] == "0"
