"""A lock between processes, which the kernel releases when its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Hold `file` locked; waits for whoever holds it, and says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"testbed: waiting for another process that holds {file}", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
