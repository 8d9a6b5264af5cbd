"""Building the test bed's programs survives being killed and being run twice at once."""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import tools, wait_for

TESTS = Path(__file__).parents[2]
BUILD = "from testbed import tools; tools.build(['pause']); print(tools.path('pause'))"


def build(cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TESTBED_CACHE_DIR": str(cache)}
    return subprocess.Popen([sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, text=True)


def test_two_builds_at_once_build_once(tmp_path: Path) -> None:
    outputs = [process.communicate(timeout=240)[0] for process in [build(tmp_path), build(tmp_path)]]
    assert sum(output.count("testbed: built pause") for output in outputs) == 1
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]


def _builds_in(cache: Path) -> list[Path]:
    return list(cache.glob("tools/*/.build-*"))


def test_a_build_that_is_killed_leaves_no_program(tmp_path: Path) -> None:
    for number in range(5):  # until the kill comes before the end
        cache = tmp_path / str(number)
        process = build(cache)
        wait_for("the compiler to start", functools.partial(_builds_in, cache), every_seconds=0.001)
        os.kill(process.pid, signal.SIGKILL)
        if "built pause" not in process.communicate()[0]:
            break
    assert not list(cache.glob("tools/*/pause"))

    output, _ = build(cache).communicate(timeout=240)
    assert os.access(output.splitlines()[-1], os.X_OK)


def test_a_change_to_a_source_makes_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "pause"
    module.mkdir()
    monkeypatch.setattr(tools, "_HERE", tmp_path)
    seen = []
    for text in ("package main", "package main // changed"):
        (module / "main.go").write_text(text)
        tools._folder.cache_clear()
        seen.append(tools._folder("pause"))
    tools._folder.cache_clear()
    assert seen[0] != seen[1]
