"""Curves are read from the log of rank 0, across attempts."""

from pathlib import Path

import pytest

from ddpjob.client.logs import LogLine
from ddpjob_cli.commands import plot
from ddpjob_cli.curves import Curves, as_csv, read_curves, ticks


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

    assert curves.metrics == ["loss", "throughput", "accuracy"]
    assert [(point.attempt, point.step, point.value) for point in curves.points["loss"]] == [(1, 10, 2.0), (2, 15, 1.0)]
    assert [(point.step, point.value) for point in curves.points["accuracy"]] == [(23, 50.97)]
    assert curves.restarts == (15,)
    assert as_csv(curves).splitlines()[:2] == ["metric,attempt,step,value,time", "loss,1,10,2.0,t"]


def test_each_value_is_at_its_own_step_the_first_and_the_last_included() -> None:
    """Progress lines of later steps repeat a value; a line for people has the step of the value."""
    curves = read_curves(
        lines(
            'ddpjob-progress {"step": 0, "totalSteps": 300}',
            "step 1/300 loss 1 accuracy 0.5",
            'ddpjob-progress {"step": 63, "totalSteps": 300, "loss": 1.0, "metrics": {"accuracy": 0.5}}',
            "step 64/300 loss 6.4e1",
            'ddpjob-progress {"step": 125, "totalSteps": 300, "loss": 64.0, "metrics": {"accuracy": 0.5}}',
            "epoch 2 step 300/300 loss 300 data 1.0 ms compute 2.0 ms 1,000 samples/s eta 0:00:00",
            "step 1/2 loss 1.2.3",
        )
    )
    assert {name: [(point.step, point.value) for point in points] for name, points in curves.points.items()} == {
        "loss": [(1, 1.0), (64, 64.0), (300, 300.0)],
        "throughput": [],
        "accuracy": [(1, 0.5)],
    }


def test_a_named_metric_has_a_point_for_each_new_value() -> None:
    """Each line repeats the latest value; the accuracy is also in a line for people, which comes first."""
    curves = read_curves(
        lines(
            "after 23 steps: accuracy 50.97 % (183 of 359 held-out samples)",
            'ddpjob-progress {"step": 23, "metrics": {"accuracy": 50.97, "val/iou": 0.3}}',
            'ddpjob-progress {"step": 30, "metrics": {"accuracy": 50.97, "val/iou": 0.3}}',
            'ddpjob-progress {"step": 46, "metrics": {"accuracy": 60, "val/iou": 0.3}}',
        )
    )
    assert curves.metrics == ["accuracy", "val/iou"]
    assert [(point.step, point.value) for point in curves.points["accuracy"]] == [(23, 50.97), (30, 50.97), (46, 60)]
    assert [(point.step, point.value) for point in curves.points["val/iou"]] == [(23, 0.3), (46, 0.3)], (
        "to the last step"
    )


def test_a_program_that_prints_new_names_without_end_has_a_bounded_number_of_curves() -> None:
    log = lines(*(f'ddpjob-progress {{"step": {step}, "metrics": {{"m{step}": 1}}}}' for step in range(100)))
    assert len(read_curves(log).metrics) == 16


@pytest.mark.parametrize(
    ("steps", "marks"), [([23, 46, 345], [23, 103, 184, 264, 345]), ([7], [7]), ([7, 9, 8], [7, 8, 9])]
)
def test_an_axis_is_marked_with_whole_steps(steps: list[int], marks: list[int]) -> None:
    assert ticks(steps) == marks


def test_a_single_step_is_printed_as_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    plot._draw("loss", {"a": read_curves(lines('ddpjob-progress {"step": 200, "loss": 0.12345}'))})
    assert capsys.readouterr().out == "a: loss is 0.123 at step 200; a curve needs a second step\n"


@pytest.mark.parametrize("curves", [read_curves(LOG), read_curves(LOG[:2])])
def test_curves_are_drawn(curves: Curves, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot._draw("loss", {"a": curves, "b": curves})
    assert "loss" in capsys.readouterr().out
    plot._write_png(tmp_path / "x.png", ["loss", "throughput"], {"a": curves})
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("value", ["1" * 400, "1e308", "-1e308"])
def test_a_number_that_cannot_be_drawn_is_left_out(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    curves = read_curves(lines("step 1/9 loss 1", f"step 2/9 loss {value}", "step 3/9 loss 2"))
    assert [point.value for point in curves.points["loss"]] == [1, 2]
    plot._draw("loss", {"j": curves})
    assert "loss" in capsys.readouterr().out
