"""An object store as the storage of checkpoints: S3 and what speaks its protocol, Google Cloud Storage, Azure.

The client is obstore: unlike fsspec's file systems it has conditional writes and parallel multipart uploads for all three,
in one package without dependencies (s3fs requires botocore, which cannot be installed together with the Kubernetes client
of the `ddpjob` command: they need different versions of python-dateutil). Addresses and credentials come from the
environment variables of each cloud, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL.

An object appears when its upload is complete. Parts of an upload that was cut off are invisible, but the store keeps them:
a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes them.
"""

import errno
import hashlib
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import obstore
from obstore import exceptions
from obstore.store import from_url

from ddpjob_ranks.errors import ConfigError
from ddpjob_session.checkpoints.storage import MAX_SMALL_BYTES, ChecksummedFile, UnavailableError, Version, checked_size

if TYPE_CHECKING:  # obstore has these types for type checkers only
    from obstore import ObjectMeta, PutMode, PutResult, UpdateVersion, WritableFile
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

#: Size of the parts of a multipart upload and of ranges that are read. S3 allows 10,000 parts: 160 GB for one checkpoint.
PART_BYTES: Final = 16 * 2**20
#: How many parts are on their way at once; each needs its own memory.
NUM_PARALLEL_PARTS: Final = 4

#: Objects that are written and deleted to see whether the store supports conditional writes, each by one process.
PROBE_PREFIX: Final = "conditional-writes.probe-"

# Requests that fail with a server error or without a connection are repeated within these limits; longer outages are left
# to the caller. One part at 0.3 MB/s takes 60 s.
_RETRY: "RetryConfig" = {
    "max_retries": 100,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=500), "max_backoff": timedelta(seconds=5), "base": 2},
}
_CLIENT: "ClientConfig" = {
    "allow_http": True,  # only if the endpoint that the user has set begins with http://
    "connect_timeout": timedelta(seconds=5),
    "timeout": timedelta(seconds=60),
}

_STATUS = re.compile(r"status code: (\d+ [A-Za-z ]+)")
_NO_ANSWER = re.compile(r"Error performing [A-Z]+ (\w+://[^/\s]+).* - HTTP error: (.+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
#: Of the answers that blame the request, those that another attempt with the same request may not get again.
_TEMPORARY = frozenset({"408", "429"})
_DENIED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
#: Where clients look for credentials if no variable has any; only virtual machines of a cloud answer there.
_METADATA_SERVERS = ("169.254.169.254", "metadata.google.internal")


@dataclass(slots=True, kw_only=True)
class ObjectStorage:
    """The objects below one prefix. See `Storage` for the operations."""

    location: str
    store: "ObjectStore"
    report: Callable[[str], None] = print
    conditional: bool = field(default=True, init=False)
    """Whether the store supports conditional writes, as far as is known."""
    reached: bool = field(default=False, init=False)
    """Whether the store has granted a request of this process."""

    @classmethod
    def at(cls, uri: str, report: Callable[[str], None] = print) -> "ObjectStorage":
        """The storage at a URI such as s3://bucket/prefix.

        Raises:
            ConfigError: the URI or a variable of the environment cannot be used.
        """
        location = uri.rstrip("/")
        try:
            store = from_url(location, client_options=_CLIENT, retry_config=_RETRY)
        except (exceptions.BaseError, ValueError) as error:
            raise ConfigError(
                f"{uri}: {_first_line(error)}; expected s3://, gs:// or az://, bucket and prefix"
            ) from error
        return cls(location=location, store=store, report=report)

    def open(self) -> None:
        """Check that objects can be written, and whether conditional writes are supported.

        Raises:
            ConfigError: there is no such bucket, or no permission to write.
        """
        probe = PROBE_PREFIX + secrets.token_hex(8)  # another process that starts now would delete one of the same name
        with self._bucket_expected(), self._translated():
            replaced = obstore.put(self.store, probe, b"1")
            obstore.put(self.store, probe, b"2")
        self.conditional = self._refuses(probe, "create") and self._refuses(probe, _version(replaced))
        if not self.conditional:
            self.report(
                f"{self.location}: this store does not support conditional writes (If-Match). If two attempts start"
                " at the same moment, the older one can write checkpoints until its next check. Resuming ignores them as"
                " soon as the newer one has saved its first checkpoint"
            )
        self.delete(probe)

    def _refuses(self, probe: str, mode: "PutMode") -> bool:
        """Whether the store refuses a write whose condition is not true.

        Raises:
            UnavailableError: it does not answer now, so this is not known.
        """
        try:
            with self._translated():
                try:
                    obstore.put(self.store, probe, b"", mode=mode)
                except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                    return True
        except UnavailableError as error:
            if _status(error.__cause__) == "501":  # Not Implemented
                return False
            raise
        except (OSError, NotImplementedError):
            return False
        return False

    def names(self) -> set[str]:
        """The names of the objects directly below the prefix."""
        with self._bucket_expected(), self._translated():
            found = {meta["path"] for page in obstore.list(self.store) for meta in page}
        return {name for name in found if "/" not in name}

    def read(
        self, name: str, moved: Callable[[], None] = lambda: None, *, max_bytes: int | None = None
    ) -> tuple[bytearray, str]:
        """The content, read in several ranges at once, and its SHA-256."""
        digest = hashlib.sha256()
        with self._translated():
            size = checked_size(name, obstore.head(self.store, name)["size"], max_bytes)
            content = bytearray(size)
            for begin in range(0, size, PART_BYTES * NUM_PARALLEL_PARTS):
                starts = range(begin, min(begin + PART_BYTES * NUM_PARALLEL_PARTS, size), PART_BYTES)
                ends = [min(start + PART_BYTES, size) for start in starts]
                for start, end, part in zip(
                    starts,
                    ends,
                    obstore.get_ranges(self.store, name, starts=starts, ends=ends, coalesce=0),
                    strict=True,
                ):
                    content[start:end] = memoryview(part)
                    digest.update(memoryview(part))
                moved()
        return content, digest.hexdigest()

    def write(self, name: str, write: Callable[[ChecksummedFile], object]) -> ChecksummedFile:
        """Upload in parts of PART_BYTES, several at once, while `write` produces the next ones."""
        with (
            self._translated(),
            # If `write` fails, leaving the context aborts the upload.
            obstore.open_writer(self.store, name, buffer_size=PART_BYTES, max_concurrency=NUM_PARALLEL_PARTS) as opened,
        ):
            return ChecksummedFile(partial(_append, opened)).fill(write)

    def delete(self, name: str) -> None:
        """Delete the object, if it exists."""
        with suppress(FileNotFoundError), self._translated():
            obstore.delete(self.store, name)

    def look(self, name: str) -> tuple[bytes, Version] | None:
        """The content, and the ETag or generation that identifies it."""
        try:
            with self._translated():
                found = obstore.get(self.store, name)
                content = bytes(found.bytes()) if found.meta["size"] <= MAX_SMALL_BYTES else b""
                return content, _version(found.meta)
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes, version: Version | None) -> bool:
        """Write the object on the condition that the store still has this version of it, or none."""
        with self._translated():
            try:
                condition: PutMode = "create" if version is None else version
                obstore.put(self.store, name, content, mode=condition if self.conditional else "overwrite")
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of the client as those of a file system, with one line of text.

        Raises:
            ConfigError: access is denied, and no request has been granted before. Later, credentials may have expired, and
                the next attempt may have others.
        """
        try:
            yield
        except (exceptions.BaseError, OSError) as error:  # the writer of an upload raises OSError only
            text = str(error)
            status = _status(error)
            if isinstance(error, FileNotFoundError) or status == "404":
                raise FileNotFoundError(errno.ENOENT, self._explained(error)) from error
            if isinstance(error, _DENIED) or status in {"401", "403"}:
                raise self._denied(self._explained(error)) from error
            if any(server in text for server in _METADATA_SERVERS):
                raise self._denied(f"{self.location}: no credentials are set") from error
            kind = UnavailableError if status in _TEMPORARY or not status.startswith("4") else OSError
            raise kind(errno.EIO, self._explained(error)) from error
        else:
            self.reached = True

    def _denied(self, text: str) -> Exception:
        if self.reached:
            return PermissionError(errno.EACCES, text)
        return ConfigError(
            f"{text}; set the credentials in spec.env (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from a Secret)"
            " and allow them to list, read, write and delete objects"
        )

    @contextmanager
    def _bucket_expected(self) -> Iterator[None]:
        """Not found means here that there is no bucket."""
        try:
            yield
        except FileNotFoundError as error:
            raise ConfigError(f"{error.strerror}; create the bucket, or correct the URI") from error

    def _explained(self, error: Exception) -> str:
        """The store's answer, or the client's own error."""
        text = str(error)
        if answer := [found[1].strip() for found in (_STATUS.search(text), _CODE.search(text)) if found]:
            return f"{self.location}: {', '.join(answer)}"
        if found := _NO_ANSWER.search(text):
            return f"{self.location}: no answer from {found[1]} ({found[2]})"
        return f"{self.location}: {_first_line(error)}"


def _append(upload: "WritableFile", piece: bytes | memoryview) -> int:
    """Give an upload a copy of the piece: it keeps that until it is sent, and torch.save uses the piece's memory again at once."""
    view = memoryview(piece)
    for start in range(0, len(view), PART_BYTES):
        part = np.frombuffer(view[start : start + PART_BYTES], dtype=np.uint8)
        upload.write(part.copy().data)  # NumPy copies without the GIL
    return len(view)


def _version(found: "ObjectMeta | PutResult") -> "UpdateVersion":
    """What identifies the content: an ETag, a generation, or both."""
    version: UpdateVersion = {}
    if found["e_tag"] is not None:
        version["e_tag"] = found["e_tag"]
    if found["version"] is not None:
        version["version"] = found["version"]
    return version


def _status(error: BaseException | None) -> str:
    """The number of the store's answer; empty if there was none."""
    return found[1][:3] if (found := _STATUS.search(str(error))) else ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
