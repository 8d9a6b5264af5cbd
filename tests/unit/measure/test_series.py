import contextlib
import json

import pytest
import torch

from ddpjob_measure.__main__ import main
from ddpjob_measure.task import MeasureError
from support.figures import figures

BENCH = ("bench", "--recipes", "digits", "--profiles", "fast", "--ranks", "1", "2", "3")
SCALE = ("scale", "--modes", "weak", "--processes", "1", "2", "3")


@pytest.fixture(params=[BENCH, SCALE], ids=["bench", "scale"])
def command(request, tmp_path):
    return [*request.param, "--results", str(tmp_path), "--name", "r"]


def measured_ranks(tmp_path):
    """The numbers of ranks in the record, and its page."""
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    return [row["world_size"] for row in rows], (tmp_path / "r.md").read_text()


@pytest.fixture
def fails_on(monkeypatch):
    """The numbers of ranks on which every run fails from now on; others give figures."""
    failing = set()

    def run(task, *, world_size, environ):  # noqa: ARG001 - called by name
        if world_size in failing:
            raise MeasureError(
                f"trainer on {world_size} ranks: exit code 1\nTraceback ...\nRuntimeError: out of memory"
            )
        return figures(world_size, 100.0 * world_size, device="cuda")

    monkeypatch.setattr("ddpjob_measure.processes.run", run)
    monkeypatch.setattr("ddpjob_measure.images.provided", lambda *_, **__: contextlib.nullcontext(({}, "none")))
    return failing


def test_one_run_that_fails_leaves_the_others_in_the_record(command, tmp_path, fails_on):
    fails_on.add(2)
    assert main(command) == 1
    ranks, page = measured_ranks(tmp_path)
    assert ranks == [1, 3]
    assert "trainer on 2 ranks: exit code 1 ... RuntimeError: out of memory" in page


def test_more_ranks_than_gpus_are_left_out_and_noted(command, tmp_path, fails_on, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    fails_on |= {2, 3}
    assert main(command) == 0
    ranks, page = measured_ranks(tmp_path)
    assert ranks == [1]
    assert "Left out: 2, 3 ranks, for which 1 GPUs are too few." in page


def test_a_series_that_fails_altogether_writes_no_record(command, tmp_path, fails_on, capsys):
    fails_on |= {1, 2, 3}
    assert main(command) == 1
    assert "nothing was measured" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
