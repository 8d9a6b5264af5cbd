"""The fence of a checkpoint folder: one attempt of one job owns it, and a late rank of an older attempt cannot commit.

The claim is a small file that rank 0 writes at its start and reads again before each commit. A newer attempt of the same
job takes it over; so does a job with another uid, which is the same job deleted and applied again.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ddpjob_ranks import contract
from ddpjob_session.checkpoints.files import write_atomically


class Fenced(Exception):  # noqa: N818 - a decision, not a malfunction
    """The folder belongs to a newer attempt, or to a newer job of the same name. This process must end."""


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
    """The claim of one owner on a folder."""

    folder: Path
    owner: Owner

    @property
    def path(self) -> Path:
        """The file of the claim."""
        return self.folder / "claim.json"

    def check(self) -> None:
        """Check that this attempt may take the folder, without taking it.

        Raises:
            Fenced: a later attempt of the same job owns it.
        """
        found = self._read()
        if found is not None and found.uid == self.owner.uid and found.attempt > self.owner.attempt:
            raise Fenced(self._refusal(found))

    def take(self) -> None:
        """Take the folder at the start of an attempt.

        Raises:
            Fenced: a later attempt of the same job owns it.
        """
        self.check()
        self._write()

    def confirm(self) -> None:
        """Check before a commit that the folder still belongs to this owner.

        A lower attempt of the same job may have written its claim at the same moment as this one did; it loses.

        Raises:
            Fenced: a later attempt, or another job, owns it.
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
        except (ValueError, TypeError, KeyError):  # the storage damaged it, as no writer leaves such a claim
            return None

    def _write(self) -> None:
        content = json.dumps({"uid": self.owner.uid, "attempt": self.owner.attempt}).encode()
        write_atomically(self.path, lambda file: file.write(content), unique=f"{self.owner.tag}-{os.getpid()}")

    def _refusal(self, found: Owner) -> str:
        return (
            f"checkpoint folder {self.folder} is claimed by attempt {found.attempt} of job uid {found.uid}; this is"
            f" attempt {self.owner.attempt} of job uid {self.owner.uid}, which has been superseded and writes nothing more."
            f" If both are meant to run, give each its own {contract.DDPJOB_CHECKPOINT_DIR}"
        )
