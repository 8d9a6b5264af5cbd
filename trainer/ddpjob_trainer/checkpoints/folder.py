"""Checkpoints on disk: two files each, `<name>.pt` with the state and `<name>.json`, the manifest, that commits it.

The manifest is written last and holds the size and SHA-256 of the state, so a checkpoint without a matching manifest
does not exist. Rank 0 alone touches the folder. Names carry step, attempt and uid: nothing is ever overwritten.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import attempt
from ddpjob_trainer.checkpoints.claim import Claim, Owner
from ddpjob_trainer.checkpoints.files import TEMPORARY_PREFIX, write_atomically

#: Of a manifest: step, attempt, uid.
MANIFEST = re.compile(r"step-(\d+)-attempt-(\d+)-(.+)\.json")
#: In place of .json: a checkpoint that was found damaged.
CORRUPT_SUFFIX = ".json.corrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What commits a checkpoint and describes it."""

    step: int
    attempt: int
    uid: str
    num_bytes: int
    sha256: str
    saved_at_unix_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """The folder of one job, as the rank 0 of one attempt sees it."""

    claim: Claim
    keep: int
    tell: Callable[[str], None] = print

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.claim.folder

    def open(self) -> None:
        """Make the folder, take it for this attempt, and clear away what crashed writers left unfinished.

        Raises:
            Fenced: a later attempt owns the folder.
            ConfigError: this user may not write there.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.claim.take()
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(
                f"checkpoint folder {self.path}: it is a file, or below one; set {contract.DDPJOB_CHECKPOINT_DIR} to a"
                " folder, which is made where it does not exist"
            ) from error
        except PermissionError as error:  # no other: a volume turns read-only too when its disk fails for a while
            raise ConfigError(
                f"checkpoint folder {self.path}: uid {os.getuid()} cannot write it ({error.strerror}); make the volume"
                " writable for that uid, or set template.spec.securityContext (fsGroup, runAsUser)"
            ) from error
        for leftover in self.path.glob(TEMPORARY_PREFIX + "*"):
            leftover.unlink(missing_ok=True)
        for state_path in self.path.glob("step-*-attempt-*-*.pt"):
            if not any(state_path.with_suffix(suffix).exists() for suffix in (".json", CORRUPT_SUFFIX)):
                state_path.unlink(missing_ok=True)  # its writer died before the manifest

    def save(self, step: int, state: bytes) -> None:
        """Commit the state after `step` steps, then drop all but the newest `keep` checkpoints.

        Raises:
            Fenced: the folder is not this attempt's any more; nothing was committed.
        """
        owner = self.claim.owner
        name = f"step-{step:010d}-{owner.tag}"
        manifest = Manifest(
            step=step,
            attempt=owner.attempt,
            uid=owner.uid,
            num_bytes=len(state),
            sha256=hashlib.sha256(state).hexdigest(),
            saved_at_unix_seconds=time.time(),
        )
        self.claim.confirm()
        self._write(f"{name}.pt", state)
        superseded = self._superseded_by(name)  # listed before the last look at the claim: nothing of a later owner
        self.claim.confirm()
        self._write(f"{name}.json", json.dumps(asdict(manifest)).encode())
        for manifest_path in superseded:
            manifest_path.unlink(missing_ok=True)  # first: without it the state is no checkpoint
            manifest_path.with_suffix(".pt").unlink(missing_ok=True)

    def load_newest(self, known: Manifest | None = None) -> tuple[Manifest, bytes] | None:
        """The newest whole checkpoint; None if there is none, or none that comes before the one that is known.

        One that is torn or corrupt is told of, set aside as `<name>.json.corrupt`, and the one before it is taken.

        Raises:
            OSError: a file is there and cannot be read: the storage may be better at the next attempt.
        """
        for manifest_path in self._newest_first():
            state_path = manifest_path.with_suffix(".pt")
            try:
                manifest = Manifest(**json.loads(manifest_path.read_text(encoding="utf-8")))
                if manifest == known:
                    return None
                state = state_path.read_bytes()
            except (FileNotFoundError, ValueError, TypeError) as error:
                if not manifest_path.exists():  # a late rank of an older attempt has just dropped it for a newer one
                    return self.load_newest(known)
                self._set_aside(manifest_path, f"{type(error).__name__}: {error}")
                continue
            if len(state) != manifest.num_bytes:
                self._set_aside(manifest_path, f"{len(state)} bytes found, {manifest.num_bytes} expected")
            elif hashlib.sha256(state).hexdigest() != manifest.sha256:
                self._set_aside(manifest_path, "its SHA-256 differs from the manifest's")
            else:
                return manifest, state
        return None

    def _write(self, name: str, content: bytes) -> None:
        try:
            write_atomically(self.path / name, content, unique=str(os.getpid()))
        except FileNotFoundError:
            self.claim.confirm()  # who takes the folder clears away what is unfinished
            raise
        except OSError as error:
            told = f"{name} ({len(content) / 1e6:.1f} MB) cannot be written: {error.strerror}"
            if error.errno == errno.ENOSPC:
                told += "; make room, for one checkpoint more than keepCheckpoints"
            raise OSError(error.errno, told, str(self.path)) from error

    def _newest_first(self) -> Iterator[Path]:
        """Manifests of this job by attempt and step, then those of other uids by step.

        The attempt counts first: a late rank of an older one may commit a higher step at the moment it is fenced, and
        what a newer attempt saved has to win. All is in the name, so that damage inside cannot hide the order.
        """

        def age(name: re.Match[str]) -> tuple[bool, int, int]:
            step, attempt, uid = name.groups()
            ours = uid == self.claim.owner.uid
            return ours, int(attempt) if ours else 0, int(step)

        names = filter(None, (MANIFEST.fullmatch(path.name) for path in self.path.glob("step-*.json")))
        yield from (self.path / name.string for name in sorted(names, key=age, reverse=True))

    def _set_aside(self, manifest_path: Path, why: str) -> None:
        self.tell(f"checkpoint {manifest_path} is not whole ({why}); going back to the one before it")
        manifest_path.replace(manifest_path.with_suffix(CORRUPT_SUFFIX))

    def _superseded_by(self, name: str) -> list[Path]:
        """Manifests beyond the newest `keep`, of which the one of that name, yet to come, is the first."""
        # A late rank of an older attempt may leave a manifest whose state is gone: that one is none to keep.
        whole = [path for path in self._newest_first() if path.stem != name and path.with_suffix(".pt").exists()]
        return whole[self.keep - 1 :]


def from_environment(environ: Mapping[str, str], *, keep: int, tell: Callable[[str], None]) -> CheckpointFolder | None:
    """The folder that DDPJOB_CHECKPOINT_DIR names; None if it names none."""
    folder = environ.get(contract.DDPJOB_CHECKPOINT_DIR)
    if not folder:
        return None
    return CheckpointFolder(claim=Claim(folder=Path(folder), owner=_owner(environ)), keep=keep, tell=tell)


def _owner(environ: Mapping[str, str]) -> Owner:
    """Who the operator says that writes, or Slurm, which counts requeues of a job.

    Without either each start is a job of its own, so that the latest one has the folder. Rank 0's word counts.
    """
    uid = environ.get(contract.DDPJOB_UID) or environ.get("SLURM_JOB_ID") or secrets.token_hex(4)
    return Owner(uid=uid, attempt=attempt(environ))
