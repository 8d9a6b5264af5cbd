"""actionlint, which the test bed builds, accepts the workflows; `unit/test_workflows.py` has their other tests."""

import subprocess
from pathlib import Path

from support import REPOSITORY
from testbed import tools


def test_actionlint_accepts_the_workflows() -> None:
    workflows = sorted((REPOSITORY / ".github/workflows").glob("*.yaml"))
    command: list[str | Path] = [tools.path("actionlint"), "-no-color", "-shellcheck=", "-pyflakes=", *workflows]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)

    assert (done.stdout + done.stderr, done.returncode) == ("", 0)
