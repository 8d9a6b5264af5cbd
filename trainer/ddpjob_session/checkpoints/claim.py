"""The fence of a checkpoint folder: one attempt of one job owns it, and a late rank of an older attempt cannot commit.

Nor can one of an earlier pod of rank 0 in the same attempt, which another pod has replaced: that counts as an older attempt.

The claim is a small file that rank 0 writes at its start and reads again before each commit. A newer attempt of the same
job takes it over; so does a job with another uid, which is the same job deleted and applied again.

A claim is replaced only if it is still the one that was read. In an object store with conditional writes two attempts
that start at the same moment cannot both take it. In a folder, or without conditional writes, both can, until the next
check: a lower attempt then loses. Meanwhile it may commit checkpoints, which are ordered after those of the higher attempt.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_session.checkpoints.storage import Storage, Version

#: The name of the claim's file.
CLAIM: Final = "claim.json"
#: How often a claim that others replace at the same moment is read again. Each of them does so once, at its start.
MAX_READS: Final = 20


class Fenced(Exception):  # noqa: N818 - a decision, not a malfunction
    """The folder belongs to a newer attempt, or to a newer job of the same name. This process must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who writes: the uid of the job, the number of its attempt, and how often the pod of rank 0 was replaced in that."""

    uid: str
    attempt: int
    replacement: int = 0

    @property
    def number(self) -> tuple[int, int]:
        """What grows from one owner of the same job to the next."""
        return self.attempt, self.replacement

    @property
    def tag(self) -> str:
        """The owner in file names."""
        replacement = f".{self.replacement}" if self.replacement else ""
        return f"attempt-{self.attempt}{replacement}-{self.uid}"

    def __str__(self) -> str:
        """The owner in messages."""
        replacement = f", replacement {self.replacement} of rank 0's pod," if self.replacement else ""
        return f"attempt {self.attempt}{replacement} of job uid {self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim of one owner on a folder."""

    storage: Storage
    owner: Owner

    def check(self) -> None:
        """Check that this attempt may take the folder, without taking it.

        Raises:
            Fenced: a later attempt of the same job owns it.
            ConfigError: this process may not look into the folder.
        """
        try:
            self._read()
        except PermissionError as error:  # at the start of a run; later the next attempt may have access again
            raise ConfigError(
                f"checkpoint folder {self.storage.location}: uid {os.getuid()} cannot read it ({error.strerror}); give"
                " that uid access to the volume, or set template.spec.securityContext (fsGroup, runAsUser)"
            ) from error

    def take(self) -> None:
        """Take the folder at the start of an attempt.

        Raises:
            Fenced: a later attempt of the same job owns it.
        """
        content = json.dumps(asdict(self.owner)).encode()
        for _ in range(MAX_READS):
            _, version = self._read()
            with suppress(FileNotFoundError):  # a new owner removes unfinished files, and is read next
                if self.storage.replace(CLAIM, content, version):
                    return
        raise OSError(f"{CLAIM} in {self.storage.location} was replaced by others {MAX_READS} times in a row")

    def confirm(self) -> None:
        """Check before a commit that the folder still belongs to this owner.

        A lower attempt of the same job may have written its claim at the same moment as this one did; it loses.

        Raises:
            Fenced: a later attempt, or another job, owns it.
        """
        found, _ = self._read()
        if found is not None and found.uid != self.owner.uid:
            raise Fenced(self._refusal(found))
        if found != self.owner:
            self.take()

    def _read(self) -> tuple[Owner | None, Version | None]:
        """The owner, which is no later attempt of the same job, and the version of the claim.

        Raises:
            Fenced: the owner is a later attempt of the same job.
        """
        seen = self.storage.look(CLAIM)
        if seen is None:
            return None, None
        try:
            content = json.loads(seen[0])
            found = Owner(
                uid=str(content["uid"]),
                attempt=int(content["attempt"]),
                replacement=int(content.get("replacement", 0)),  # which an earlier release does not write
            )
        # No writer leaves such a claim: the storage has damaged it, or somebody else who may write there has forged it.
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None, seen[1]
        if found.uid == self.owner.uid and found.number > self.owner.number:
            raise Fenced(self._refusal(found))
        return found, seen[1]

    def _refusal(self, found: Owner) -> str:
        return (
            f"checkpoint folder {self.storage.location} is claimed by {found}; this is"
            f" {self.owner}, which has been superseded and writes nothing more."
            f" If both are meant to run, give each its own {contract.DDPJOB_CHECKPOINT_DIR} or"
            f" {contract.DDPJOB_CHECKPOINT_URI}"
        )
