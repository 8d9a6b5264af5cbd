"""Checkpoints: `<name>.pt` holds the state as torch.save writes it, `<name>.json`, the manifest, commits it.

The manifest is written last and holds the size and SHA-256 of the state: a state without a matching manifest is no
checkpoint. Only rank 0 uses the folder. File names contain step, attempt, replacement and uid, so nothing is ever overwritten.

The storage completes each operation before the next one begins: the state, its manifest, and only then the removal of
older checkpoints. After a crash at any point a complete checkpoint is there.
"""

import errno
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from ddpjob_ranks import contract, generation
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch.identity import attempt
from ddpjob_session.checkpoints.claim import Claim, Owner
from ddpjob_session.checkpoints.files import Folder
from ddpjob_session.checkpoints.storage import (
    MAX_SMALL_BYTES,
    UNFINISHED_PREFIX,
    ChecksummedFile,
    Storage,
    UnavailableError,
)

#: How long a save is repeated while the storage does not answer. Together with one request it takes less than
#: `writer.WRITE_TIMEOUT_SECONDS`, which ends the wait of training.
PATIENCE_SECONDS = 480.0
#: Wait before a save is repeated.
RETRY_SECONDS = 10.0
#: The name of a manifest: step, attempt, replacement of rank 0's pod if it was replaced, uid. A name that is much longer was
#: not written by a run, and a file system may have no room for the names that follow from it.
MANIFEST = re.compile(r"step-(\d{1,18})-attempt-(\d{1,18})(?:\.(\d{1,18}))?-(.{1,100})\.json")
#: Replaces .json in the name of a damaged checkpoint's manifest.
CORRUPT_SUFFIX = ".json.corrupt"


#: Errors of a volume that may be over soon: it is full, or its server does not answer.
PASSING_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO, errno.ETIMEDOUT)


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
    """The checkpoints of one job, as the rank 0 of one attempt sees them."""

    claim: Claim
    keep: int
    report: Callable[[str], None] = print
    _written: list[ChecksummedFile] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def num_bytes_written(self) -> int:
        """How much of the file that was begun last the storage has taken."""
        return self._written[0].num_bytes if self._written else 0

    @property
    def storage(self) -> Storage:
        """Where the files are."""
        return self.claim.storage

    @property
    def location(self) -> str:
        """Path or URI, for messages."""
        return self.storage.location

    def open(self) -> None:
        """Create the folder, take it for this attempt, and remove what crashed writers left unfinished.

        Raises:
            Fenced: a later attempt owns the folder.
            ConfigError: this process may not write there.
        """
        self.storage.open()
        self.claim.take()
        names = self.storage.names()
        for name in names:
            stem = name.removesuffix(".pt")
            is_state = stem != name and MANIFEST.fullmatch(f"{stem}.json")
            lacks_manifest = is_state and not {f"{stem}.json", stem + CORRUPT_SUFFIX} & names
            if lacks_manifest or name.startswith(UNFINISHED_PREFIX):
                self.storage.delete(name)

    def save(self, step: int, write_state: Callable[[ChecksummedFile], object]) -> None:
        """Commit the state after `step` steps, then remove all but the newest `keep` checkpoints.

        While the storage does not answer, the save is repeated for up to PATIENCE_SECONDS.

        Raises:
            Fenced: the folder no longer belongs to this attempt; nothing was committed.
            OSError: the checkpoint could not be written.
        """
        began = time.monotonic()
        reported = False
        while True:
            try:
                return self._save(step, write_state)
            except UnavailableError as error:
                if time.monotonic() - began > PATIENCE_SECONDS:
                    text = f"checkpoint of step {step} could not be written for {PATIENCE_SECONDS:.0f} s: {error}"
                    raise UnavailableError(error.errno, text) from error
                if not reported:
                    self.report(
                        f"checkpoint of step {step} is not written yet: {error}. Training continues, and the"
                        f" save is repeated for up to {PATIENCE_SECONDS:.0f} s"
                    )
                reported = True
                time.sleep(RETRY_SECONDS)

    def _save(self, step: int, write_state: Callable[[ChecksummedFile], object]) -> None:
        owner = self.claim.owner
        name = f"step-{step:010d}-{owner.tag}"
        saved_at = time.time()
        self.claim.confirm()
        state = self.write(f"{name}.pt", write_state)
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
        self.write(f"{name}.json", lambda file: file.write(content))
        for stem in superseded:
            self.storage.delete(f"{stem}.json")  # first: without it the state is no checkpoint
            self.storage.delete(f"{stem}.pt")

    def load_newest(
        self, known: Manifest | None = None, *, moved: Callable[[], None] = lambda: None
    ) -> tuple[Manifest, bytearray] | None:
        """The newest complete checkpoint; None if there is none, or none newer than the one that is known.

        `moved` is called after each piece that has been read.
        A torn or corrupt one is reported, its manifest renamed to `<name>.json.corrupt`, and the one before it is taken.

        Raises:
            OSError: a file exists and cannot be read: the storage may have recovered at the next attempt.
        """
        for stem in self._newest_first(self.storage.names()):
            content = bytearray()
            try:
                content, _ = self.storage.read(f"{stem}.json", max_bytes=MAX_SMALL_BYTES)
                manifest = _manifest(content)
                if manifest == known:
                    return None
                state, sha256 = self.storage.read(f"{stem}.pt", moved, max_bytes=manifest.num_bytes)
            except (FileNotFoundError, ValueError, TypeError, RecursionError) as error:
                if f"{stem}.json" not in self.storage.names():
                    # A late rank of an older attempt has just replaced it by a newer one.
                    return self.load_newest(known, moved=moved)
                self._set_aside(stem, content, f"{type(error).__name__}: {error}")
                continue
            if len(state) != manifest.num_bytes:
                self._set_aside(stem, content, f"{len(state)} bytes found, {manifest.num_bytes} expected")
            elif sha256 != manifest.sha256:
                self._set_aside(stem, content, "its SHA-256 differs from the manifest's")
            else:
                return manifest, state
        return None

    def newest_step(self) -> int | None:
        """The step of the newest checkpoint; None if there is none."""
        newest = next(iter(self._newest_first(self.storage.names())), None)
        return None if newest is None else int(newest.split("-")[1])

    def write(self, name: str, write: Callable[[ChecksummedFile], object]) -> ChecksummedFile:
        """Write a file; the error says what to do.

        Raises:
            Fenced: the folder no longer belongs to this attempt.
            OSError: it could not be written.
        """

        def watched(file: ChecksummedFile) -> None:
            self._written[:] = [file]
            write(file)

        try:
            return self.storage.write(name, watched)
        except UnavailableError:
            raise
        except FileNotFoundError:
            self.claim.confirm()  # a new owner of the folder removes unfinished files
            raise
        except OSError as error:
            message = f"{name} cannot be written: {error.strerror}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message += "; free space on the volume: it must hold one checkpoint more than keepCheckpoints"
            if error.errno in PASSING_ERRORS:
                raise UnavailableError(error.errno, f"{self.location}: {message}") from error
            raise OSError(error.errno, message, self.location) from error

    def _newest_first(self, names: Iterable[str]) -> list[str]:
        """Stems of the manifests of this job by attempt, replacement of rank 0's pod and step, then those of other uids by step.

        The owner counts first: a late rank of an older attempt may commit a higher step at the moment it is fenced, and
        the checkpoint of the newer one must win. The order follows from the names, so damaged content cannot change it.
        """

        def age(name: re.Match[str]) -> tuple[bool, int, int, int]:
            step, attempt, replacement, uid = name.groups(default="0")
            if uid != self.claim.owner.uid:
                return False, 0, 0, int(step)
            return True, int(attempt), int(replacement), int(step)

        found = filter(None, map(MANIFEST.fullmatch, names))
        return [name.string.removesuffix(".json") for name in sorted(found, key=age, reverse=True)]

    def _set_aside(self, stem: str, manifest: bytearray, why: str) -> None:
        self.report(f"checkpoint {self.location}/{stem}.json is damaged ({why}); using the one before it")
        self.storage.write(stem + CORRUPT_SUFFIX, lambda file: file.write(bytes(manifest)))
        self.storage.delete(f"{stem}.json")

    def _superseded_by(self, name: str) -> list[str]:
        """Stems of the checkpoints beyond the newest `keep`, the first of which is the given one, to be written next."""
        names = self.storage.names()
        # A late rank of an older attempt may leave a manifest without a state, which does not count among those kept.
        complete = [stem for stem in self._newest_first(names) if stem != name and f"{stem}.pt" in names]
        return complete[self.keep - 1 :]


def from_environment(
    environ: Mapping[str, str], *, keep: int, report: Callable[[str], None]
) -> CheckpointFolder | None:
    """The folder that DDPJOB_CHECKPOINT_DIR or DDPJOB_CHECKPOINT_URI names; None if neither is set.

    Raises:
        ConfigError: both are set, or the URI cannot be used.
    """
    folder, uri = (environ.get(name) for name in (contract.DDPJOB_CHECKPOINT_DIR, contract.DDPJOB_CHECKPOINT_URI))
    if folder and uri:
        raise ConfigError(
            f"{contract.DDPJOB_CHECKPOINT_DIR} is {folder} and {contract.DDPJOB_CHECKPOINT_URI} is {uri}: checkpoints are"
            " stored in one place; unset one of them"
        )
    if not folder and not uri:
        return None
    storage = _object_storage(uri, report) if uri else Folder(Path(folder or ""))
    return CheckpointFolder(claim=Claim(storage=storage, owner=_owner(environ)), keep=keep, report=report)


def read_anywhere(place: str, moved: Callable[[], None]) -> bytearray:
    """The content of one file, given by its path or by a URI such as s3://bucket/models/resnet.safetensors.

    Raises:
        OSError: it cannot be read.
        ConfigError: the URI cannot be used.
    """
    if "://" in place:
        parent, _, name = place.rpartition("/")
        return _object_storage(parent).read(name, moved)[0]
    path = Path(place)
    return Folder(path.parent).read(path.name, moved)[0]


def _manifest(content: bytearray) -> Manifest:
    """A manifest from its file. Fields of later releases are ignored, so that a job can go back to this one.

    Raises:
        ValueError, TypeError: it is damaged.
    """
    found = json.loads(content)
    return Manifest(**{field.name: found[field.name] for field in fields(Manifest) if field.name in found})


def _object_storage(uri: str, report: Callable[[str], None] = print) -> Storage:
    """Imports the client only where it is used.

    Raises:
        ConfigError: the client is not installed, or does not accept the URI.
    """
    try:
        from ddpjob_session.checkpoints.object_store import ObjectStorage
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise ConfigError(
            f"{uri}: object stores need the package obstore, which is not installed; pip install obstore"
        ) from error
    return ObjectStorage.at(uri, report)


def _owner(environ: Mapping[str, str]) -> Owner:
    """The job and attempt that the operator set, or those of Slurm, which counts requeues of a job.

    Without either, each start is a job of its own, so the latest one owns the folder.
    """
    uid = environ.get(contract.DDPJOB_UID) or environ.get("SLURM_JOB_ID") or secrets.token_hex(4)
    return Owner(uid=uid, attempt=attempt(environ), replacement=generation.replacements(environ).get(0, 0))
