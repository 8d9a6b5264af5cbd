"""The benchmark gives every figure that it lists, here of very few jobs. No test asserts how fast anything is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = (
    *("--singles", "2", "--failures", "1", "--storm-jobs", "3", "--storm-pods", "2", "--idle-seconds", "1"),
    *("--many-jobs", "4", "--many-pods", "2", "--floor-pods", "5", "--failovers", "1"),
    *("--operator-arguments", "--lease-seconds 6"),
)


@pytest.mark.nightly
def test_every_measure_gives_its_figures_and_the_record_names_the_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.operators", "--name", "tiny", "--results", str(tmp_path), *TINY]
    path = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "trainer", "tests", "hack"))
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=580, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith((tmp_path / "tiny.md").read_text())
    record = json.loads((tmp_path / "tiny.json").read_text())
    assert {"date", "cpu", "cores", "kubernetes", "python", "kopf", "load_average_at_start"} <= record[
        "surroundings"
    ].keys()
    figures = {row["measure"]: row["value"] for row in record["rows"]}
    assert figures["3 jobs x 2 pods at once: pods"] > 0
    assert figures["4 jobs x 2 pods: failed passes"] == 0
    assert figures["4 jobs x 2 pods: writes of a restarted operator"] == 0
    for what in (
        "a bare client's pods",
        "a bare client's storm: pods",
        "a bare client's storm: all pods run",
        "a job created",
        "a pod fails",
        "operator CPU",
        "memory",
        "jobs finished",
        "requests per job",
        "progress reads",
        "a job's 4 pods, in the floor's time",
        "a storm's pods/s, in the floor's",
        "a storm's pods/s, in a bare client's storm's",
        "a storm's CPU, in the floor's pods",
        "the leader gets SIGTERM",
        "the leader gets SIGKILL",
    ):
        assert any(what in measure for measure in figures), f"no measure of {what}: {sorted(figures)}"
