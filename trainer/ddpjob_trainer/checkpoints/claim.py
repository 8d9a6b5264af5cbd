"""The fence of a checkpoint folder: one attempt of one job owns it, and a late rank of an older one cannot commit.

The claim is a small file that rank 0 writes at its start and reads again before each commit. A newer attempt of the same
job takes it; so does a job of another uid, which is the same job deleted and applied again.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ddpjob_ranks import contract
from ddpjob_trainer.checkpoints.files import write_atomically


class Fenced(Exception):  # noqa: N818 - a verdict, not a malfunction
    """The folder belongs to a newer attempt, or to a newer job of the same name. This process has to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who writes: the uid of the job and the number of its attempt."""

    uid: str
    attempt: int

    @property
    def tag(self) -> str:
        """The owner in file names."""
        return f"attempt-{self.attempt}-{self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The owner's hold on a folder."""

    folder: Path
    owner: Owner

    @property
    def path(self) -> Path:
        """The claim's file."""
        return self.folder / "claim.json"

    def check(self) -> None:
        """Whether this attempt may take the folder, which it leaves to whom it belongs.

        Raises:
            Fenced: a later attempt of the same job has it.
        """
        found = self._read()
        if found is not None and found.uid == self.owner.uid and found.attempt > self.owner.attempt:
            raise Fenced(self._refusal(found))

    def take(self) -> None:
        """Take the folder at the start of an attempt.

        Raises:
            Fenced: a later attempt of the same job has it.
        """
        self.check()
        self._write()

    def confirm(self) -> None:
        """Make sure, before a commit, that the folder is still ours.

        A lower attempt of the same job may have written its claim at the same moment as we wrote ours; it loses.

        Raises:
            Fenced: a later attempt, or another job, has it.
        """
        found = self._read()
        if found == self.owner:
            return
        if found is not None and (found.uid != self.owner.uid or found.attempt > self.owner.attempt):
            raise Fenced(self._refusal(found))
        self._write()

    def _read(self) -> Owner | None:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return Owner(uid=str(content["uid"]), attempt=int(content["attempt"]))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):  # no claim that anybody could have written: storage damage
            return None

    def _write(self) -> None:
        content = json.dumps({"uid": self.owner.uid, "attempt": self.owner.attempt})
        write_atomically(self.path, content.encode(), unique=f"{self.owner.tag}-{os.getpid()}")

    def _refusal(self, found: Owner) -> str:
        return (
            f"checkpoint folder {self.folder} is claimed by attempt {found.attempt} of job uid {found.uid}; this is"
            f" attempt {self.owner.attempt} of job uid {self.owner.uid}, which is over: it writes nothing any more."
            f" Where both were meant to run, give each a {contract.DDPJOB_CHECKPOINT_DIR} of its own"
        )
