"""Run commands: the time of each is bounded, the progress of long ones is shown, and none outlives who asked for it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO

from testbed.errors import TestbedError

#: Bounds each command; the longest installs torch with its CUDA libraries (3 GB to fetch).
LONGEST_SECONDS = 1800

#: Put before a command: it gets process and mount namespaces of its own. When it ends, is killed, or this process is,
#: whatever it started and mounted goes with it.
CONTAINED = (
    *("setpriv", "--pdeathsig=KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)


class CommandError(TestbedError):
    """A command failed or took too long."""


def run(*command: str, stdin: IO[bytes] | None = None) -> list[str]:
    """Run a command and give the lines that it printed, showing a builder's steps and downloads as they come.

    Raises:
        CommandError: it failed, or took longer than `LONGEST_SECONDS`.
    """
    lines: list[str] = []
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
        )
        limit = threading.Timer(LONGEST_SECONDS, process.kill)
        limit.start()
        try:
            for line in map(str.rstrip, process.stdout or ()):
                lines.append(line)
                if " STEP " in line or line.startswith("  Downloading"):
                    print(f"testbed:   {line.strip()[:110]}", flush=True)
            code = process.wait()
        finally:
            limit.cancel()
            process.kill()
        if code != 0:
            errors.seek(0)
            last = "\n".join([*lines[-20:], errors.read().decode(errors="replace")[-2000:]])
            raise CommandError(f"{' '.join(command)} ended with code {code}:\n{last}")
    return lines


def answer(
    *command: str, seconds: float, error: type[TestbedError], stdin: str | None = None, **environment: str
) -> str:
    """What a short command prints, with these further variables.

    Raises:
        error: it failed or took longer; with what it wrote.
    """
    arguments = [part for part in command[1:] if not part.startswith(("--kubeconfig=", "--cache-dir="))]
    what = " ".join([Path(command[0]).name, *arguments])
    try:
        done = subprocess.run(
            command,
            input=stdin,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",  # a log may hold anything
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise error(f"{what}: no answer within {seconds:g} s") from None
    if done.returncode != 0:
        raise error(f"{what}: {done.stdout}{done.stderr}".strip())
    return done.stdout
