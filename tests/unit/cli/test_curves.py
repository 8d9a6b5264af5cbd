"""Curves are read from the log of rank 0, across attempts."""

from pathlib import Path

import pytest

from ddpjob.client.logs import LogLine
from ddpjob_cli.commands import plot
from ddpjob_cli.curves import Curves, as_csv, read_curves


def lines(*texts: str, attempt: int = 1) -> list[LogLine]:
    return [LogLine(attempt=attempt, rank=0, pod="a-1-0", node=None, time="t", text=text) for text in texts]


LOG = [
    *lines(
        "epoch 0 step 1 loss 3",
        'ddpjob-progress {"step": 10, "loss": 2.0, "samplesPerSecond": 100}',
        "after 23 steps: accuracy 50.97 % (183 of 359 held-out samples)",
        'ddpjob-progress {"step": 20, "loss": NaN}',
    ),
    *lines('ddpjob-progress {"step": 15, "loss": 1.0}', attempt=2),
]


def test_values_and_restarts_are_found() -> None:
    curves = read_curves(LOG)

    assert curves.metrics == ["loss", "accuracy", "throughput"]
    assert [(point.attempt, point.step, point.value) for point in curves.points["loss"]] == [(1, 10, 2.0), (2, 15, 1.0)]
    assert [(point.step, point.value) for point in curves.points["accuracy"]] == [(23, 50.97)]
    assert curves.restarts == (15,)
    assert as_csv(curves).splitlines()[:2] == ["metric,attempt,step,value,time", "loss,1,10,2.0,t"]


@pytest.mark.parametrize("curves", [read_curves(LOG), read_curves(LOG[:2])])
def test_curves_are_drawn(curves: Curves, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot._draw("loss", {"a": curves, "b": curves})
    assert "loss" in capsys.readouterr().out
    plot._write_png(tmp_path / "x.png", ["loss", "throughput"], {"a": curves})
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
