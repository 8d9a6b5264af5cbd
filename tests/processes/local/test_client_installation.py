"""The wheel of a release, without extras, is a working `ddpjob` command without torch and the operator's libraries."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import REPOSITORY

EXAMPLES = REPOSITORY / "manifests/examples"

#: A job that needs nothing but Python.
JOB = """
apiVersion: ddpjob.dev/v1beta1
kind: DDPJob
metadata: {name: hello}
spec:
  nodes: 2
  image: example.org/none
  command: [python3, -c, "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"]
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of a fresh virtual environment that holds the wheel of a release and its dependencies."""
    folder = tmp_path_factory.mktemp("installation")
    environment = folder / "venv"
    release = {**os.environ, "PYTHON": sys.executable, "DDPJOB_REPOSITORY_URL": "https://example.com/a/ddpjob"}
    subprocess.run([REPOSITORY / "hack/wheel.sh", folder], env=release, check=True, timeout=240)
    (wheel,) = folder.glob("*.whl")
    # A constraint only holds the versions still: which packages are installed is the wheel's own decision.
    pins = re.findall(r"^[\w.-]+==\S+(?: ;[^\\]*)?", (REPOSITORY / "requirements/dev.lock").read_text(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))

    def run(program: str, *arguments: str | Path, cwd: Path = folder) -> "subprocess.CompletedProcess[str]":
        command: list[str | Path] = [environment / "bin" / program, *arguments]
        return subprocess.run(command, cwd=cwd, env={}, capture_output=True, text=True, timeout=240, check=False)

    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=240)
    pip: list[str | Path] = [
        environment / "bin/pip",
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--constraint", folder / "pins.txt", wheel], check=True, timeout=240)
    return run


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_is_shown(installed: Run, arguments: list[str]) -> None:
    done = installed("ddpjob", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run" in done.stdout


def test_a_job_with_a_command_runs(installed: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)

    done = installed("ddpjob", "run", "--local", "job.yaml", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[rank 0] rank 0 of 2", "[rank 1] rank 1 of 2"} <= set(done.stdout.splitlines())


def test_a_contradictory_job_is_refused_by_the_rules_of_the_crd(installed: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("nodes: 2", "nodes: 2\n  processesPerNode: 4"))

    done = installed("ddpjob", "run", "--local", "job.yaml", cwd=tmp_path)

    assert done.returncode == 2
    assert "processesPerNode" in done.stderr


def test_the_built_in_trainer_names_the_extra_that_it_needs(installed: Run, tmp_path: Path) -> None:
    done = installed("ddpjob", "run", "--local", EXAMPLES / "digits.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "install ddpjob with the extra trainer (in a checkout: pip install '.[trainer]')" in done.stderr


@pytest.mark.parametrize("module", ["torch", "numpy", "kopf"])
def test_what_only_clusters_and_trainers_need_is_not_installed(installed: Run, module: str) -> None:
    assert f"No module named '{module}'" in installed("python", "-c", f"import {module}").stderr


def test_the_wheel_of_a_release_names_its_repository(installed: Run) -> None:
    ask = "from importlib.metadata import metadata; print(*metadata('ddpjob').get_all('Project-URL'), sep=chr(10))"
    assert "Source, https://example.com/a/ddpjob" in installed("python", "-c", ask).stdout.splitlines()


def test_the_wheel_has_every_source_file_of_both_roots(installed: Run) -> None:
    files = installed("python", "-c", "from importlib.metadata import files; print(*files('ddpjob'))").stdout
    packed = {name for name in files.split() if name.startswith("ddpjob") and ".dist-info/" not in name}
    sources = {
        str(path.relative_to(root))
        for root in (REPOSITORY / "operator", REPOSITORY / "trainer")
        for pattern in ("*.py", "py.typed")
        for path in root.glob(f"ddpjob*/**/{pattern}")
    }
    assert {f"ddpjob/{name}/__init__.py" for name in ("client", "session", "recipe", "launch")} < sources
    assert packed == sources
