"""hack/environment.py: what `make setup` puts into .venv, with a lock of one small package."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support import REPOSITORY

#: Modules of a package whose command prints which Python runs it, and where the project's package is.
COMMAND = "import sys, ddpjob_ours\n\ndef main():\n    print(sys.prefix, ddpjob_ours.__file__, ddpjob_ours.VALUE, sep='\\n')\n"
#: The second file is a script, which pip compiles: the folder of scripts then has a folder for bytecode.
MORE = {
    "more.py": "def main():\n    print('more')\n",
    "more-1.data/scripts/more_script.py": "#!python\nprint('script')\n",
}
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "ours"
version = "1"
[tool.setuptools.packages.find]
where = ["operator"]
"""


def wheel_of(folder: Path, name: str, version: str, files: dict[str, str]) -> str:
    """A wheel of these files in a folder; its line of a lock."""
    info = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in content.items()]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in {**content, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,"])}.items():
            wheel.writestr(member, text)
    return f"{name} @ {path.as_uri()} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class Machine:
    """Checkouts of a small project which share one cache folder, and a lock of one package, `tool`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.cache.mkdir()
        locked = (REPOSITORY / "requirements/dev.lock").read_text()
        setuptools = re.search(r"^setuptools==.*?# via\n", locked, re.MULTILINE | re.DOTALL)
        assert setuptools is not None, "it builds this project, too"
        self.lock = setuptools[0] + wheel_of(folder, "tool", "1", {"tool.py": COMMAND})

    def checkout(self, name: str) -> Path:
        checkout = self.folder / name
        package = checkout / "operator/ddpjob_ours"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"VALUE = {name!r}\n")
        (checkout / "pyproject.toml").write_text(PROJECT)
        (checkout / "hack").mkdir()
        shutil.copy(REPOSITORY / "hack/environment.py", checkout / "hack")
        (checkout / "requirements").mkdir()
        (checkout / "requirements/demo.lock").write_text(self.lock)
        (checkout / "requirements/dev.lock").write_text(self.lock + wheel_of(self.folder, "more", "1", MORE))
        return checkout

    def make(self, checkout: Path, *locks: str) -> "subprocess.CompletedProcess[str]":
        files = (f"requirements/{lock}.lock" for lock in locks)
        command: list[str | Path] = [sys.executable, checkout / "hack/environment.py", *files]
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "DDPJOB_CACHE_DIR": str(self.cache)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)

    def layer(self, checkout: Path) -> Path:
        """Where the first lock of this checkout is installed."""
        ask = "import environment, sys; print(*environment.names(['requirements/demo.lock']))"
        command = [sys.executable, "-c", ask]
        done = subprocess.run(command, cwd=checkout / "hack", capture_output=True, text=True, check=True)
        return self.cache / done.stdout.strip()

    def layers(self, lock: str) -> list[Path]:
        return list(self.cache.glob(f"venv-{lock}-*"))


def run(checkout: Path, program: str) -> list[str]:
    done = subprocess.run([checkout / ".venv/bin" / program], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("a machine"))


@pytest.fixture(scope="module")
def one(machine: Machine) -> Path:
    """The first checkout, for which the layer was installed."""
    checkout = machine.checkout("one")
    done = machine.make(checkout, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installing requirements/demo.lock" in done.stdout
    return checkout


@pytest.fixture(scope="module")
def two(machine: Machine, one: Path) -> Path:
    """A second checkout, which finds the layer and says nothing."""
    checkout = machine.checkout("two")
    done = machine.make(checkout, "demo")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert machine.layer(checkout) == machine.layer(one)
    return checkout


def test_a_console_script_of_a_lock_runs_with_the_python_and_the_packages_of_its_checkout(one: Path, two: Path) -> None:
    for checkout in (one, two):
        assert run(checkout, "tool") == [
            str(checkout / ".venv"),
            str(checkout / "operator/ddpjob_ours/__init__.py"),
            checkout.name,
        ]


def test_a_later_lock_adds_what_the_earlier_one_lacks_in_a_layer_of_its_own(machine: Machine, two: Path) -> None:
    assert machine.make(two, "demo", "dev").returncode == 0

    assert run(two, "more") == ["more"]
    assert run(two, "more_script.py") == ["script"]
    assert run(two, "tool")[2] == "two"
    more, first = machine.layers("dev")[0], machine.layers("demo")[0]
    assert list(more.glob("lib/*/site-packages/more.py"))
    assert not list(more.glob("lib/*/site-packages/tool.py"))
    assert list(first.glob("lib/*/site-packages/tool.py"))


def test_nothing_is_made_again_unless_something_has_changed(machine: Machine, one: Path) -> None:
    stamp = one / ".venv/made-of"
    before = stamp.stat().st_mtime_ns

    assert machine.make(one, "demo").returncode == 0
    assert stamp.stat().st_mtime_ns == before

    (one / "pyproject.toml").write_text(PROJECT + "[project.scripts]\nours = 'tool:main'\n")
    assert machine.make(one, "demo").returncode == 0
    assert run(one, "ours") == run(one, "tool")


def test_an_installation_that_was_interrupted_is_never_used(machine: Machine) -> None:
    checkout = machine.checkout("interrupted")
    lock = checkout / "requirements/demo.lock"
    lock.write_text(lock.read_text() + "# another layer\n")
    half = Path(f"{machine.layer(checkout)}.partial/bin")
    half.mkdir(parents=True)
    (half / "leftover").write_text("#!/bin/sh\n")

    assert machine.make(checkout, "demo").returncode == 0

    assert run(checkout, "tool")[2] == "interrupted"
    assert not (checkout / ".venv/bin/leftover").exists()
    assert not half.exists()


def test_a_package_with_another_hash_is_refused_and_leaves_no_layer(machine: Machine) -> None:
    checkout = machine.checkout("attacked")
    lock = checkout / "requirements/demo.lock"
    lock.write_text(re.sub(r"(tool.*--hash=sha256:).{64}", rf"\g<1>{'0' * 64}", lock.read_text()))

    done = machine.make(checkout, "demo")

    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not machine.layer(checkout).exists()
    assert not (checkout / ".venv").exists()


def test_a_link_to_the_environment_of_another_checkout_is_replaced_and_that_environment_stays(
    machine: Machine, two: Path
) -> None:
    checkout = machine.checkout("linked")
    (checkout / ".venv").symlink_to(two / ".venv")

    assert machine.make(checkout, "demo").returncode == 0

    assert run(checkout, "tool")[2] == "linked"
    assert run(two, "tool")[2] == "two"
