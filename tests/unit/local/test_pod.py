"""A pod of a local run, with real processes."""

import subprocess
import sys
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest

from ddpjob_cli.local.pod import LocalPod
from ddpjob_cli.local.program import Program
from ddpjob_operator.core.render.pods import create_pod
from support.builders import program


def test_the_record_of_a_process_names_no_user_since_the_pods_user_does_not_apply_to_it(tmp_path: Path) -> None:
    of = program()
    assert of.spec is not None
    body = create_pod(of, of.spec, "local", 0).body
    pod = LocalPod(
        {**body, "metadata": {**body["metadata"], "uid": "u"}}, Mock(), tmp_path / "log", tmp_path / "message"
    )
    assert pod.record().security is None


async def test_a_log_that_cannot_be_written_ends_no_training_and_its_end_shows_the_cause(tmp_path: Path) -> None:
    of = program()
    assert of.spec is not None
    notes: list[str] = []
    lines: list[str] = []
    pod = await LocalPod.start(
        create_pod(of, of.spec, "local", 0).body,
        Program(command=(sys.executable, "-c", "print(1); print(2); exit(3)"), environ={}, folder=tmp_path),
        Path("/dev/full"),
        tmp_path / "absent" / "message",
    )
    await pod.follow(lambda _, line: lines.append(line), lambda: None, notes.append)
    assert lines == ["1", "2"]
    (note,) = notes
    assert note.startswith("/dev/full cannot be written (No space left on device): the training continues")
    record = pod.record()
    assert record.exit is not None
    assert (record.exit.code, record.exit.message.split()) == (3, ["1", "2"])


async def test_the_exit_code_is_left_to_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll of a process that has just ended takes its exit code away: asyncio then reports 255."""

    def poll(_: object) -> NoReturn:
        raise AssertionError("the process was polled")

    of = program()
    assert of.spec is not None
    script = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print('ready', flush=True); signal.pause()"
    pod = await LocalPod.start(
        create_pod(of, of.spec, "local", 0).body,
        Program(command=(sys.executable, "-c", script), environ={}, folder=tmp_path),
        tmp_path / "log",
        tmp_path / "message",
    )
    monkeypatch.setattr(subprocess.Popen, "poll", poll)
    await pod.follow(lambda stopped, _: stopped.lower_deadline(), lambda: None)
    record = pod.record()
    assert record.exit is not None
    assert record.exit.code == 75
    assert record.active_deadline_seconds == 1  # the operator does not ask again
