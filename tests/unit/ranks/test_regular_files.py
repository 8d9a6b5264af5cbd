"""Whatever a run writes or reads in DDPJOB_EVENTS_DIR, where others may write, too."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from ddpjob_ranks import contract
from ddpjob_ranks.watch import evidence, history, process_end
from ddpjob_ranks.watch.timeline import Timeline, open_events
from ddpjob_session.observers import Beginning, EventFiles, Recorder
from ddpjob_session.step_trace import StepTrace, path_for


def write_spans(folder: Path) -> None:
    file = open_events(dict(os.environ), rank=0)
    if file is None:
        raise OSError(folder)
    with file:
        file.write("a span")


def write_evidence(folder: Path) -> None:
    if evidence.write(Timeline(), os.environ) is None:
        raise OSError(folder)


def write_values(folder: Path) -> None:
    Recorder(folder).begin(BEGINNING)


def write_flight_recorder(_: Path) -> None:
    process_end._dump_flight_recorder(0)


def write_trace(_: Path) -> None:
    said: list[str] = []
    path = path_for([0, 1], os.environ, rank=0)
    trace = StepTrace(range(1), path, torch.device("cpu"), say=said.append, moved=lambda: None)
    trace.before_step(0)
    trace.close()


def write_event_files(folder: Path) -> None:
    events = EventFiles(folder / "tensorboard")
    events.begin(BEGINNING)
    events.log(1, {"loss": 1.0})
    events.end()


BEGINNING = Beginning(job="j", uid="u", attempt=1, first_step=0, settings={})
#: What is written, and the name by which others could have planted something before.
WRITERS: list[tuple[Callable[[Path], None], str]] = [
    (write_spans, "attempt-1-rank-0.jsonl"),
    (write_evidence, "attempt-1-evidence.json"),
    (write_values, "attempt-1-values.jsonl"),
    (write_flight_recorder, "flight-recorder-gloo-0"),
    (write_trace, "profile/attempt-1-rank-0.json.gz"),
    (write_trace, "profile"),
    (write_event_files, "tensorboard"),
]
FOLDERS = ("profile", "tensorboard")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "events"
    folder.mkdir()
    monkeypatch.setenv(contract.DDPJOB_EVENTS_DIR, str(folder))
    monkeypatch.setenv(contract.DDPJOB_ATTEMPT, "1")
    return folder


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_nothing_is_written_through_a_link(folder: Path, write: Callable[[Path], None], name: str) -> None:
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir()
    (elsewhere / "file").write_text("of another job")
    planted = folder / name
    planted.parent.mkdir(exist_ok=True)
    planted.symlink_to(elsewhere if name in FOLDERS else elsewhere / "file")
    with suppress(OSError):
        write(folder)
    assert [path.name for path in elsewhere.iterdir()] == ["file"]
    assert (elsewhere / "file").read_text() == "of another job"


@pytest.mark.parametrize(("write", "name"), [row for row in WRITERS if row[1] not in FOLDERS])
def test_a_pipe_in_the_place_of_a_file_blocks_nobody(folder: Path, write: Callable[[Path], None], name: str) -> None:
    planted = folder / name
    planted.parent.mkdir(exist_ok=True)
    os.mkfifo(planted)
    with suppress(OSError):
        write(folder)


def test_a_pipe_among_the_values_of_earlier_attempts_blocks_nobody(folder: Path) -> None:
    os.mkfifo(folder / history.file_name(0))
    assert history.read(folder) == []
