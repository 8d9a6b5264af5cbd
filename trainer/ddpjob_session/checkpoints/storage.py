"""Where checkpoints are stored: the few operations that a folder and an object store have in common.

What makes checkpoints safe (`folder.py`, `claim.py`) is written once, with these operations only.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, Protocol, Self

#: What the names of files begin with that a writer has not completed, in storage where those can be seen.
UNFINISHED_PREFIX: Final = ".unfinished-"
#: The size of a manifest, a claim and a description is at most this. A larger one was left by somebody else, who can make a file
#: that seems to have terabytes and takes no space.
MAX_SMALL_BYTES: Final = 2**20
#: What identifies one content of a small file for `replace`.
Version = Any


class UnavailableError(OSError):
    """The storage does not answer now; the same operation may succeed later."""

    def __str__(self) -> str:
        return self.strerror or super().__str__()  # what the user reads at the end of a rank has no number of an error


class ChecksummedFile:
    """A binary file that is being written, and the size and SHA-256 of its content so far.

    Pieces are hashed and written without a copy. For a piece of many MB neither step holds the GIL, so other threads
    run Python meanwhile.
    """

    def __init__(self, append: Callable[[bytes | memoryview], int]) -> None:
        """`append` writes a piece."""
        self._append = append
        self._hash = hashlib.sha256()
        self._error: Exception | None = None
        self.num_bytes = 0

    def fill(self, write: Callable[["ChecksummedFile"], object]) -> Self:
        """Have the whole content written by `write`.

        Raises:
            OSError: a piece could not be written, whatever `write` made of that: torch.save raises an error of its own.
        """
        try:
            write(self)
        except BaseException as error:
            if self._error is not None:
                raise self._error from error
            raise
        return self

    def write(self, piece: bytes | memoryview) -> int:
        """Append a piece."""
        self._hash.update(piece)
        self.num_bytes += len(piece)
        try:
            return self._append(piece)
        except Exception as error:
            self._error = error
            raise

    def flush(self) -> None:
        """Nothing: whoever has opened the file flushes it. torch.save calls this at its end."""

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

    def names(self) -> set[str]:
        """The names of all files, and of what writers that crashed have left of others."""

    def read(
        self, name: str, moved: Callable[[], None] = lambda: None, *, max_bytes: int | None = None
    ) -> tuple[bytearray, str]:
        """The content of a file, and its SHA-256 in hexadecimal. `moved` is called after each piece: it may take minutes.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is larger than `max_bytes`.
        """

    def write(self, name: str, write: Callable[[ChecksummedFile], object]) -> ChecksummedFile:
        """Create or replace the file with what `write` writes. Returns it for its size and checksum."""

    def delete(self, name: str) -> None:
        """Delete the file, if it exists."""

    def look(self, name: str) -> tuple[bytes, Version] | None:
        """The content of a small file, and its version for `replace`; None if there is no such file.

        Of one that is larger than MAX_SMALL_BYTES the content is empty.
        """

    def replace(self, name: str, content: bytes, version: Version | None) -> bool:
        """Replace a small file if it still has this version, or create it if `version` is None and it does not exist.

        Returns whether it was written. An object store decides this atomically; a folder looks first and writes then.
        """


def checked_size(name: str, num_bytes: int, max_bytes: int | None) -> int:
    """The size of a file that is about to be read.

    Raises:
        ValueError: it is larger than it may be.
    """
    if max_bytes is not None and num_bytes > max_bytes:
        raise ValueError(f"{name} has {num_bytes} bytes; expected at most {max_bytes}")
    return num_bytes
