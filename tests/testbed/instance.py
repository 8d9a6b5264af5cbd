"""One running control plane or cluster on this machine: its folder, its owner, its end.

An instance ends with its owner, the process that made it: a small guard process holds a pipe of the owner's and undoes
everything when that closes without a word. Should the guard be killed too, the next instance that starts does it. An instance
that was detached (from the command line) has no owner any more and ends by `down`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed import paths
from testbed.errors import TestbedError
from testbed.journal import Journal, remove_folder
from testbed.locks import exclusive
from testbed.processes import ProcessId

#: What the owner sends the guard when it has cleaned up itself.
DONE = b"done"


class InstanceError(TestbedError):
    """An instance cannot be made or found."""


@dataclasses.dataclass(slots=True)
class Instance:
    """A folder below `paths.clusters()`; everything made for the instance is in it or in its journal."""

    name: str
    _guard: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Where all of it lies."""
        return paths.clusters() / self.name

    @property
    def journal(self) -> Journal:
        """What was made outside the folder."""
        return Journal(self.folder / "journal")

    @property
    def description(self) -> dict[str, str]:
        """Free facts about the instance, for `status` and for whoever attaches to it later."""
        file = self.folder / "description.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def describe(self, **facts: str) -> None:
        """Add to the description."""
        (self.folder / "description.json").write_text(json.dumps(self.description | facts, indent=2) + "\n")

    @property
    def detached(self) -> bool:
        """Whether it exists, was started completely, and has no owner any more."""
        return self.folder.exists() and not (self.folder / "owner").exists()

    @property
    def alive(self) -> bool:
        """Whether its owner, or if it is detached any of its processes, lives."""
        owner = self.folder / "owner"
        if owner.exists():
            return ProcessId.from_stat(owner.read_text()).alive
        return any(process.alive for process in self.journal.processes())

    @classmethod
    def create(cls, name: str) -> Instance:
        """Make the folder, owned by this process, after cleaning up after all instances whose owner is gone.

        Raises:
            InstanceError: one of this name is running, or the name is unfit for a folder and a network device.
        """
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
            raise InstanceError(f"cluster name {name!r}: expected up to 41 lower-case letters, digits and hyphens")
        instance = cls(name)
        with exclusive(_lock()):
            for stale in [other for other in instances() if not other.alive]:
                print(f"testbed: cleaning up after {stale.name}, whose owner is gone", flush=True)
                # An instance that cannot be removed is reported and does not prevent another start.
                try:
                    stale._remove()
                except InstanceError as error:
                    print(f"testbed: {error}", flush=True)
            if instance.folder.exists():
                raise InstanceError(
                    f"a cluster named {name!r} is running; stop it: python -m testbed down --name {name}"
                )
            # The owner is known before the folder shows under its name: a folder without one is a detached instance.
            unfinished = paths.clusters() / f".{name}.{os.getpid()}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True, mode=0o700)
            (unfinished / "owner").write_text(Path("/proc/self/stat").read_text())
            unfinished.rename(instance.folder)
        instance._guard = subprocess.Popen(
            [sys.executable, "-m", "testbed.guard", name],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            cwd="/",
            # A Ctrl-C in the terminal is for the owner alone.
            start_new_session=True,
        )
        return instance

    def detach(self) -> None:
        """Let it outlive this process."""
        (self.folder / "owner").unlink()
        self._dismiss_guard()

    def remove(self) -> None:
        """Undo everything and delete the folder. Does nothing where there is none.

        Raises:
            InstanceError: something could not be undone; the rest is.
        """
        with exclusive(_lock()):
            self._remove()
        self._dismiss_guard()

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.communicate(DONE)
            self._guard = None

    def _remove(self) -> None:
        try:
            self.journal.undo()
            remove_folder(self.folder)
        except (OSError, ExceptionGroup) as error:
            failures = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            causes = "; ".join(str(failure) for failure in failures)
            raise InstanceError(f"cluster {self.name} was not removed completely; remove it again: {causes}") from error


def instances() -> list[Instance]:
    """All that are there, running or left over."""
    folder = paths.clusters()
    found = sorted(folder.iterdir()) if folder.exists() else []
    return [Instance(path.name) for path in found if path.is_dir() and not path.name.startswith(".")]


def _lock() -> Path:
    return paths.clusters() / ".lock"
