"""Makes .venv, the virtual environment of this checkout: `python3 hack/environment.py requirements/demo.lock ...`.

Each lock becomes a layer: a virtual environment in the cache folder with those packages of the lock that the layers before it
lack. A layer is named by the hash of its locks and by the Python, so all checkouts of a machine share it. It is built under
another name and then renamed, so a layer whose installation was interrupted is never used. Only .venv knows this checkout:
it has the way to the layers, their console scripts, and this checkout's own packages in editable mode.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
VENV = REPOSITORY / ".venv"
#: The checkout, its packages and the layers that .venv was made of; written last.
STAMP = VENV / "made-of"

#: What pip writes before a console script; the second form is for a path with spaces or of more than 127 characters.
_HEAD = re.compile(rb"\A(?:#!.*python.*\n|#!/bin/sh\n'''exec' .*python.*\n' '''\n)")
#: A line of pip's output that names a wheel and its size.
_WHEEL = re.compile(r"\s+(Downloading|Using cached) ([^-]+-[^-]+)\S*\.whl \(([\d.]+) ([kMG]?B|bytes)\)")
_MEGABYTES = {"bytes": 1e-6, "B": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}


def main(locks: list[str]) -> None:
    """Make .venv of these locks, in their order. Takes 50 ms where nothing has changed.

    Raises:
        SystemExit: the Python is too old.
        CalledProcessError: pip failed, and has said why.
    """
    if sys.version_info < (3, 11):  # noqa: UP036 - this runs with whatever Python make finds
        version = platform.python_version()
        sys.exit(f"Python {version} found; ddpjob needs Python 3.11 or newer: make PYTHON=python3.12 ...")
    cache = Path(os.environ["DDPJOB_CACHE_DIR"])
    layers = [cache / name for name in names(locks)]
    if _is_made_of(layers):
        return
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "venv.lock").open("w") as turn:  # another checkout may want the same layer
        fcntl.flock(turn, fcntl.LOCK_EX)
        for index, (layer, lock) in enumerate(zip(layers, locks, strict=True)):
            if not layer.exists():
                _build(layer, lock, below=layers[:index])
        _make(layers)


def names(locks: list[str]) -> list[str]:
    """The name of each layer. It depends on the locks of the layers below, whose packages this one leaves out."""
    python = f"{platform.python_implementation()}-{platform.python_version()}-{sysconfig.get_platform()}"
    state, names = hashlib.sha256(python.encode()), []
    for lock in locks:
        state.update((REPOSITORY / lock).read_bytes())
        names.append(f"venv-{Path(lock).stem}-{state.hexdigest()[:12]}")
    return names


def _description(layers: list[Path]) -> list[str]:
    project = hashlib.sha256((REPOSITORY / "pyproject.toml").read_bytes()).hexdigest()
    return [str(VENV), project, *map(str, layers)]


def _is_made_of(layers: list[Path]) -> bool:
    """Whether .venv has these layers; further ones do no harm: `make demo` after `make setup` has nothing to do."""
    found = STAMP.read_text(encoding="utf-8").splitlines() if STAMP.exists() else []
    wanted = _description(layers)
    return found[: len(wanted)] == wanted and all(Path(layer).exists() for layer in found[2:])


def _build(layer: Path, lock: str, *, below: list[Path]) -> None:
    partial = layer.with_name(f"{layer.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    pip = [] if not below else ["--without-pip"]  # the lowest layer has it
    subprocess.run([sys.executable, "-m", "venv", *pip, partial], check=True)
    _link(partial, below)
    _install(partial / "bin/python", REPOSITORY / lock)
    partial.rename(layer)


def _link(venv: Path, layers: list[Path]) -> None:
    """Let the Python of a virtual environment find the packages of these layers, after its own."""
    (_packages(venv) / "layers.pth").write_text("".join(f"{_packages(layer)}\n" for layer in layers), encoding="utf-8")


def _packages(venv: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(venv)}))


def _install(python: Path, lock: Path) -> None:
    """Install a lock with pip, and print which large packages are on their way. The lock is complete: --no-deps."""
    print(f"ddpjob: installing {lock.relative_to(REPOSITORY)}", flush=True)
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off", "--no-deps"]
    command += ["--require-hashes", "--requirement", str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as pip:
        assert pip.stdout is not None, "a pipe"
        sum_megabytes = 0.0
        for line in pip.stdout:
            if found := _WHEEL.match(line):
                action, package, size, unit = found.groups()
                sum_megabytes += float(size) * _MEGABYTES[unit]
                if unit in ("MB", "GB"):
                    print(f"ddpjob: {action} {package}, {size} {unit} ({sum_megabytes:,.0f} MB so far)", flush=True)
            elif line.startswith("Installing"):
                print(f"ddpjob: unpacking {line.count(',') + 1} packages", flush=True)
    if pip.returncode:
        raise subprocess.CalledProcessError(pip.returncode, command)


def _make(layers: list[Path]) -> None:
    if VENV.is_symlink():  # to the environment of another checkout, which --clear would empty
        VENV.unlink()
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV], check=True)
    _link(VENV, layers)
    for layer in reversed(layers):
        for script in filter(Path.is_file, (layer / "bin").iterdir()):
            _add_script(script)
    pip = [str(VENV / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--editable", str(REPOSITORY)], check=True)
    STAMP.write_text("\n".join(_description(layers)) + "\n", encoding="utf-8")


def _add_script(script: Path) -> None:
    """Give .venv a console script of a layer, which runs with the Python of .venv; or a program, such as ruff, as it is."""
    ours = VENV / "bin" / script.name
    if ours.exists() or script.name.lower().startswith(("activate", "python")):
        return
    content = script.read_bytes()
    head = _HEAD.match(content)
    if head is None:
        ours.symlink_to(script)
        return
    start = f"#!/bin/sh\n'''exec' \"{VENV}/bin/python\" \"$0\" \"$@\"\n' '''\n"
    ours.write_bytes(start.encode() + content[head.end() :])
    ours.chmod(0o755)


if __name__ == "__main__":
    main(sys.argv[1:])
