"""Where checkpoints are stored: the few operations that a folder and an object store have in common.

What makes checkpoints safe (`folder.py`, `claim.py`) is written once, with these operations only.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

#: What identifies one content of a small file for `replace`.
Version = Any


class UnavailableError(OSError):
    """The storage does not answer now; the same operation may succeed later."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()  # what the user reads at the end of a rank has no number of an error


class Sink(Protocol):
    """What the pieces of a file are written to."""

    def write(self, piece: bytes | memoryview, /) -> int:
        """Append a piece."""

    def flush(self) -> None:
        """Hand over what is buffered."""


class ChecksummedFile:
    """A binary file that is being written, and the size and SHA-256 of its content so far.

    Pieces are hashed and written without a copy. For a piece of many MB neither step holds the GIL, so other threads
    run Python meanwhile.
    """

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        self.error: Exception | None = None
        """Why a piece could not be written; torch.save raises an error of its own instead."""

    def write(self, piece: bytes | memoryview) -> int:
        """Append a piece."""
        self._hash.update(piece)
        self.num_bytes += len(piece)
        try:
            return self._file.write(piece)
        except Exception as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Hand over what is buffered; torch.save calls this at its end."""
        self._file.flush()

    @property
    def sha256(self) -> str:
        """The digest of all pieces, in hexadecimal."""
        return self._hash.hexdigest()


class Storage(Protocol):
    """Named files in one place. Each exists either complete or not at all, even after a crash of this process.

    Every operation raises UnavailableError if the storage does not answer, and OSError if it answers with an error.
    """

    @property
    def location(self) -> str:
        """The place, for messages."""

    def open(self) -> None:
        """Make the place ready for this process.

        Raises:
            ConfigError: it does not exist and cannot be created, or this process may not write there.
        """

    def remove_unfinished(self) -> None:
        """Remove what writers that crashed have left of files that they never completed."""

    def names(self) -> set[str]:
        """The names of all files."""

    def read(self, name: str, moved: Callable[[], None] = lambda: None) -> tuple[bytearray, str]:
        """The content of a file, and its SHA-256 in hexadecimal. `moved` is called after each piece: it may take minutes.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def write(self, name: str, write: Callable[[ChecksummedFile], object]) -> ChecksummedFile:
        """Create or replace the file with what `write` writes. Returns it for its size and checksum."""

    def delete(self, name: str) -> None:
        """Delete the file, if it exists."""

    def look(self, name: str) -> tuple[bytes, Version] | None:
        """The content of a small file, and its version for `replace`; None if there is no such file."""

    def replace(self, name: str, content: bytes, version: Version | None) -> bool:
        """Replace a small file if it still has this version, or create it if `version` is None and it does not exist.

        Returns whether it was written. An object store decides this atomically; a folder looks first and writes then.
        """
