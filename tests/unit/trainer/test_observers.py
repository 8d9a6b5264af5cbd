"""Observers receive what rank 0 reports, and never end a training."""

import importlib.util
import io
import itertools
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_session import observers
from ddpjob_session.observers import EventFiles, Observer, Recorder
from ddpjob_session.report import Reporter
from support.fakes import fake


class Recording(Observer):
    def __init__(self):
        self.calls = []

    def begin(self, beginning):
        self.calls.append(beginning)

    def log(self, step, values):
        self.calls.append((step, dict(values)))

    def histogram(self, step, name, values):
        self.calls.append((step, name, len(values)))

    def end(self):
        self.calls.append("end")


class Failing(Recording):
    def log(self, step, values):
        super().log(step, values)
        raise OSError("no route to the service")


def train(*seen: Observer, steps: range = range(8), saved: int | None = None) -> str:
    """Report each second step, and an evaluation at the end. Returns what was printed."""
    out = io.StringIO()
    with Reporter(enabled=True, out=out) as report:
        report.watch(seen)
        report.begin(
            step=steps.start, total_steps=8, steps_per_epoch=4, checkpoint_step=None, settings={"recipe": "digits"}
        )
        for step in steps:
            report.step_done(step + 1, num_samples=8)
            if step % 2:
                report.log(loss=1 / (1 + step), data_seconds=1, compute_seconds=3, exposed_seconds=1, learning_rate=0.1)
        if saved:
            report.saved(saved)
        if steps.stop == 8:
            report.evaluated(
                {"accuracy": 100 * 358 / 359}, {"accuracy": "accuracy 99.72 %"}, headline="accuracy", num_samples=359
            )
    return out.getvalue()


def test_an_observer_receives_values_histograms_and_the_step_of_checkpoints(monkeypatch):
    monkeypatch.setenv(contract.DDPJOB_UID, "u-1")
    monkeypatch.setenv(contract.DDPJOB_ATTEMPT, "3")
    seen = Recording()
    train(seen, steps=range(6, 8), saved=8)
    beginning, (step, values), times, (_, evaluated), end = seen.calls
    assert (beginning.uid, beginning.attempt, beginning.first_step) == ("u-1", 3, 6)
    assert beginning.settings == {"recipe": "digits"}
    assert (step, values["loss"], values["learning_rate"]) == (8, 1 / 8, 0.1)
    assert [values[f"share/{part}"] for part in ("data", "compute", "communication")] == [0.25, 0.5, 0.25]
    assert values["samples_per_second"] > 0
    assert times == (8, "step_seconds", 2)
    assert evaluated == {"accuracy": pytest.approx(99.72, abs=0.01), "checkpoint_step": 8}
    assert end == "end"


def test_an_observer_that_fails_is_left_out_and_the_others_go_on():
    failing, other = Failing(), Recording()
    printed = train(failing, other)
    assert len(failing.calls) == 2
    assert other.calls[-1] == "end"
    assert printed.count("observer Failing failed and receives no more values: OSError: no route to the service") == 1


def test_observers_are_found_by_import_path():
    assert isinstance(observers.load([f"{__name__}:Recording"])[0], Recording)
    for path in ("no_such_module:A", f"{__name__}:Missing", "json:JSONDecoder", "a b"):
        with pytest.raises(ConfigError, match="observers"):
            observers.load([path])


def test_the_example_of_the_documentation_sends_everything_to_the_service(monkeypatch):
    page = (Path(__file__).parents[3] / "docs/how-to/metrics.md").read_text()
    example = page.partition("<!-- test: observer -->\n```python\n")[2].partition("```")[0]
    assert len([line for line in example.splitlines() if line]) <= 10
    service = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", service)
    monkeypatch.setenv(contract.DDPJOB_UID, "u-1")
    namespace: dict[str, Any] = {}
    exec(example, namespace)  # noqa: S102 - it is ours
    train(namespace["Wandb"](), steps=range(6, 8))
    assert service.init.call_args.kwargs["id"] == "u-1"
    run = service.init.return_value
    assert [min(call.args[0]) for call in run.log.call_args_list] == ["learning_rate", "accuracy"]
    assert run.finish.call_count == 1


def test_the_example_for_mlflow_continues_the_run_of_earlier_attempts(monkeypatch):
    page = (Path(__file__).parents[3] / "docs/how-to/metrics.md").read_text()
    example = page.partition("<!-- test: mlflow -->\n```python\n")[2].partition("```")[0]
    service = MagicMock()
    monkeypatch.setitem(sys.modules, "mlflow", service)
    monkeypatch.setenv(contract.DDPJOB_UID, "u-1")
    namespace: dict[str, Any] = {}
    exec(example, namespace)  # noqa: S102 - it is ours
    for found in ([], [fake(info=fake(run_id="r-1"))]):
        service.search_runs.return_value = found
        train(namespace["Mlflow"](), steps=range(6, 8))
    assert [call.args[0] for call in service.start_run.call_args_list] == [None, "r-1"]
    assert service.start_run.call_args.kwargs["tags"] == {"uid": "u-1"}
    assert service.log_params.call_count == 1
    assert [call.kwargs for call in service.log_metrics.call_args_list] == 4 * [{"step": 8}]
    assert service.end_run.call_count == 2


@pytest.fixture
def hours_apart(monkeypatch):
    """Each event file is an hour younger than the one before. Their names begin with the time in seconds."""
    hours = itertools.count()
    clock = fake(time=lambda: 3600.0 * next(hours))
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", clock)


def events_in(folder: Path) -> EventAccumulator:
    """All events that TensorBoard shows of a folder."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    read.Reload()
    return read


@pytest.mark.usefixtures("hours_apart")
def test_event_files_of_an_interrupted_training_show_each_step_once(tmp_path):
    """The first attempt dies after step 6 of 8; its last checkpoint is of step 4."""
    environ = {contract.DDPJOB_EVENTS_DIR: str(tmp_path)}
    train(*observers.from_environment(environ), steps=range(6))
    train(*observers.from_environment(environ), steps=range(4, 8))
    read = events_in(tmp_path / "tensorboard")
    tags = read.Tags()
    assert {"loss", "learning_rate", "samples_per_second", "share/data", "accuracy"} <= set(tags["scalars"])
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [
        (step, pytest.approx(1 / step)) for step in (2, 4, 6, 8)
    ]
    assert [event.step for event in read.Histograms("step_seconds")] == [2, 4, 6, 8]
    assert read.Histograms("step_seconds")[0].histogram_value.num == 2


@pytest.mark.usefixtures("hours_apart")
def test_a_repeated_last_evaluation_is_shown_once(tmp_path):
    for steps in (range(8), range(8, 8)):
        train(EventFiles(tmp_path), steps=steps)
    read = events_in(tmp_path)
    assert [event.step for event in read.Scalars("accuracy")] == [8]


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, None),
        ({contract.DDPJOB_CHECKPOINT_DIR: "/c"}, "/c"),
        ({contract.DDPJOB_CHECKPOINT_DIR: "/c", contract.DDPJOB_EVENTS_DIR: "/e"}, "/e"),
    ],
)
def test_the_folder_of_event_files(environ, folder):
    assert observers.output_folder(environ) == (folder and Path(folder))
    kinds = [type(observer) for observer in observers.from_environment(environ)]
    assert (EventFiles in kinds) == bool(folder)
    assert (Recorder in kinds) == (contract.DDPJOB_EVENTS_DIR in environ)


def test_without_the_package_there_are_no_event_files(monkeypatch, tmp_path):
    """A folder of that name in the working directory is not the package, which Python takes it for."""
    (tmp_path / "tensorboard").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "tensorboard")
    assert importlib.util.find_spec("tensorboard") is not None
    assert observers.from_environment({contract.DDPJOB_CHECKPOINT_DIR: str(tmp_path)}) == []


def test_a_package_that_cannot_be_imported_does_not_end_the_training(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    assert "observer EventFiles failed" in train(EventFiles(tmp_path))
