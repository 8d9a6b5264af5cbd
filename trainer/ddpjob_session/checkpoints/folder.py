"""Checkpoints on disk: `<name>.pt` holds the state as torch.save writes it, `<name>.json`, the manifest, commits it.

The manifest is written last and holds the size and SHA-256 of the state: a state without a matching manifest is no
checkpoint. Only rank 0 uses the folder. File names contain step, attempt and uid, so nothing is ever overwritten.

Each file and then its name is flushed to the disk before the next operation begins: the state, its manifest, and only then
the removal of older checkpoints. After a crash of the machine at any point a complete checkpoint is there.
"""

import errno
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
from ddpjob_session.checkpoints.claim import Claim, Owner
from ddpjob_session.checkpoints.files import (
    TEMPORARY_PREFIX,
    ChecksummedFile,
    make_folder,
    read_and_hash,
    write_atomically,
)

#: The name of a manifest: step, attempt, uid.
MANIFEST = re.compile(r"step-(\d+)-attempt-(\d+)-(.+)\.json")
#: Replaces .json in the name of a damaged checkpoint's manifest.
CORRUPT_SUFFIX = ".json.corrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The commit record of a checkpoint, which also describes it."""

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
    report: Callable[[str], None] = print

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.claim.folder

    def open(self) -> None:
        """Create the folder, take it for this attempt, and remove what crashed writers left unfinished.

        Raises:
            Fenced: a later attempt owns the folder.
            ConfigError: this user may not write there.
        """
        try:
            make_folder(self.path)
            self.claim.take()
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(
                f"checkpoint folder {self.path}: the path, or a part of it, is a file; set"
                f" {contract.DDPJOB_CHECKPOINT_DIR} to a folder, which is created if it does not exist"
            ) from error
        except PermissionError as error:  # not EROFS: a volume also becomes read-only while its disk fails
            raise ConfigError(
                f"checkpoint folder {self.path}: uid {os.getuid()} cannot write it ({error.strerror}); make the volume"
                " writable for that uid, or set template.spec.securityContext (fsGroup, runAsUser)"
            ) from error
        for leftover in self.path.glob(TEMPORARY_PREFIX + "*"):
            leftover.unlink(missing_ok=True)
        for state_path in self.path.glob("step-*-attempt-*-*.pt"):
            if not any(state_path.with_suffix(suffix).exists() for suffix in (".json", CORRUPT_SUFFIX)):
                state_path.unlink(missing_ok=True)  # its writer died before it wrote the manifest

    def save(self, step: int, write_state: Callable[[ChecksummedFile], object]) -> None:
        """Commit the state after `step` steps, then remove all but the newest `keep` checkpoints.

        Raises:
            Fenced: the folder no longer belongs to this attempt; nothing was committed.
        """
        owner = self.claim.owner
        name = f"step-{step:010d}-{owner.tag}"
        saved_at = time.time()
        self.claim.confirm()
        state = self._write(f"{name}.pt", write_state)
        superseded = self._superseded_by(name)  # listed before the claim is read again: nothing of a later owner
        self.claim.confirm()
        manifest = Manifest(
            step=step,
            attempt=owner.attempt,
            uid=owner.uid,
            num_bytes=state.num_bytes,
            sha256=state.sha256,
            saved_at_unix_seconds=saved_at,
        )
        content = json.dumps(asdict(manifest)).encode()
        self._write(f"{name}.json", lambda file: file.write(content))
        for manifest_path in superseded:
            manifest_path.unlink(missing_ok=True)  # first: without it the state is no checkpoint
            manifest_path.with_suffix(".pt").unlink(missing_ok=True)

    def load_newest(
        self, known: Manifest | None = None, *, moved: Callable[[], None] = lambda: None
    ) -> tuple[Manifest, bytearray] | None:
        """The newest complete checkpoint; None if there is none, or none newer than the one that is known.

        `moved` is called after each piece that has been read.
        A torn or corrupt one is reported, renamed to `<name>.json.corrupt`, and the one before it is taken.

        Raises:
            OSError: a file exists and cannot be read: the storage may have recovered at the next attempt.
        """
        for manifest_path in self._newest_first():
            state_path = manifest_path.with_suffix(".pt")
            try:
                manifest = Manifest(**json.loads(manifest_path.read_text(encoding="utf-8")))
                if manifest == known:
                    return None
                state, sha256 = read_and_hash(state_path, moved)
            except (FileNotFoundError, ValueError, TypeError) as error:
                if not manifest_path.exists():  # a late rank of an older attempt has just replaced it by a newer one
                    return self.load_newest(known, moved=moved)
                self._set_aside(manifest_path, f"{type(error).__name__}: {error}")
                continue
            if len(state) != manifest.num_bytes:
                self._set_aside(manifest_path, f"{len(state)} bytes found, {manifest.num_bytes} expected")
            elif sha256 != manifest.sha256:
                self._set_aside(manifest_path, "its SHA-256 differs from the manifest's")
            else:
                return manifest, state
        return None

    def _write(self, name: str, write: Callable[[ChecksummedFile], object]) -> ChecksummedFile:
        try:
            return write_atomically(self.path / name, write, unique=str(os.getpid()))
        except FileNotFoundError:
            self.claim.confirm()  # a new owner of the folder removes unfinished files
            raise
        except OSError as error:
            message = f"{name} cannot be written: {error.strerror}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message += "; free space on the volume: it must hold one checkpoint more than keepCheckpoints"
            raise OSError(error.errno, message, str(self.path)) from error

    def _newest_first(self) -> Iterator[Path]:
        """Manifests of this job by attempt and step, then those of other uids by step.

        The attempt counts first: a late rank of an older attempt may commit a higher step at the moment it is fenced, and
        the checkpoint of the newer attempt must win. The order follows from the names, so damaged content cannot change it.
        """

        def age(name: re.Match[str]) -> tuple[bool, int, int]:
            step, attempt, uid = name.groups()
            ours = uid == self.claim.owner.uid
            return ours, int(attempt) if ours else 0, int(step)

        names = filter(None, (MANIFEST.fullmatch(path.name) for path in self.path.glob("step-*.json")))
        yield from (self.path / name.string for name in sorted(names, key=age, reverse=True))

    def _set_aside(self, manifest_path: Path, why: str) -> None:
        self.report(f"checkpoint {manifest_path} is damaged ({why}); using the one before it")
        manifest_path.replace(manifest_path.with_suffix(CORRUPT_SUFFIX))

    def _superseded_by(self, name: str) -> list[Path]:
        """Manifests beyond the newest `keep`, the first of which is that of the given name, to be written next."""
        # A late rank of an older attempt may leave a manifest without a state, which does not count among those kept.
        complete = [path for path in self._newest_first() if path.stem != name and path.with_suffix(".pt").exists()]
        return complete[self.keep - 1 :]


def from_environment(
    environ: Mapping[str, str], *, keep: int, report: Callable[[str], None]
) -> CheckpointFolder | None:
    """The folder that DDPJOB_CHECKPOINT_DIR names; None if it names none."""
    folder = environ.get(contract.DDPJOB_CHECKPOINT_DIR)
    if not folder:
        return None
    return CheckpointFolder(claim=Claim(folder=Path(folder), owner=_owner(environ)), keep=keep, report=report)


def _owner(environ: Mapping[str, str]) -> Owner:
    """The job and attempt that the operator set, or those of Slurm, which counts requeues of a job.

    Without either, each start is a job of its own, so the latest one owns the folder.
    """
    uid = environ.get(contract.DDPJOB_UID) or environ.get("SLURM_JOB_ID") or secrets.token_hex(4)
    return Owner(uid=uid, attempt=attempt(environ))
