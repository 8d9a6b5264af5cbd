import json

import pytest

from ddpjob_measure import scale
from ddpjob_measure.__main__ import main
from ddpjob_measure.task import Figures, MeasureError, Task
from support.figures import figures

PNG = b"\x89PNG\r\n\x1a\n"


def test_figures_survive_the_way_through_the_output():
    sent = figures(2, 100.0)
    assert Figures.from_output(f"noise\n{sent.line()}\nmore noise") == sent


def test_an_output_without_figures_is_shown():
    with pytest.raises(MeasureError, match=r"no line that starts with 'ddpjob-measure '; its output ends: Killed"):
        Figures.from_output("Killed")


def test_a_task_of_an_unknown_program_is_refused():
    with pytest.raises(ValueError, match=r"no program rocket; expected one of trainer, plain"):
        Task.from_json('{"program": "rocket", "config": {}}')


def test_twice_the_speed_on_two_processes_is_an_efficiency_of_one():
    one, two, three = figures(1, 100.0), figures(2, 200.0), figures(3, 150.0)
    assert [scale.efficiency(each, one) for each in (one, two, three)] == [1, 1, 0.5]


def test_strong_scaling_fixes_the_global_batch_and_weak_scaling_the_share(tmp_path, monkeypatch):
    asked = []

    def run(task, *, world_size, environ):  # noqa: ARG001 - called by name
        asked.append((world_size, task.config["globalBatchSize"]))
        return figures(world_size, 100.0 * world_size, batch=task.config["globalBatchSize"])

    monkeypatch.setattr("ddpjob_measure.processes.run", run)
    assert main(["scale", "--batch", "512", "--share", "64", "--name", "s", "--results", str(tmp_path)]) == 0
    sizes = [1, 2, 3, 4, 6, 8]
    assert asked == [(size, 512) for size in sizes] + [(size, 64 * size) for size in sizes]
    record = json.loads((tmp_path / "s.json").read_text())
    assert {"date", "load_average_at_start", "cpu", "cores", "torch"} <= record["surroundings"].keys()
    assert [(row["mode"], row["world_size"], row["efficiency"]) for row in record["rows"][:2]] == [
        ("strong", 1, 1),
        ("strong", 2, 1),
    ]
    assert (tmp_path / "s.md").read_text().count("\n| weak |") == len(sizes)
    assert (tmp_path / "s.png").read_bytes().startswith(PNG)
