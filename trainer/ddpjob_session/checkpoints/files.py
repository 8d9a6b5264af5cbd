"""Files that exist either complete or not at all, even after a crash of the machine."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

#: How much is read at once: at 10 MB/s this takes 7 s, and the watchdog's limit is minutes.
PIECE_BYTES = 64 * 2**20
#: Prefix of the names of unfinished files.
TEMPORARY_PREFIX = ".unfinished-"


class ChecksummedFile:
    """A binary file that is being written, and the size and SHA-256 of its content so far.

    Pieces are hashed and written without a copy. For a piece of many MB neither step holds the GIL, so other threads
    run Python meanwhile.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        self.error: OSError | None = None
        """Why a piece could not be written; torch.save raises an error of its own instead."""

    def write(self, piece: bytes | memoryview) -> int:
        """Append a piece."""
        self._hash.update(piece)
        self.num_bytes += len(piece)
        try:
            return self._file.write(piece)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Hand what is buffered to the kernel; torch.save calls this at its end."""
        self._file.flush()

    @property
    def sha256(self) -> str:
        """The digest of all pieces, in hexadecimal."""
        return self._hash.hexdigest()


def write_atomically(path: Path, write: Callable[[ChecksummedFile], object], *, unique: str) -> ChecksummedFile:
    """Write a temporary file in the folder of `path`, flush it to the disk, and rename it.

    Args:
        path: The file's name; a file of that name is replaced.
        write: Writes the whole content.
        unique: Distinguishes this writer's temporary file from that of any other writer.

    Returns:
        The file, closed, for its size and checksum.

    Raises:
        OSError: the file could not be written, whatever `write` made of that.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{unique}-{path.name}")
    file: ChecksummedFile | None = None
    try:
        with temporary.open("wb") as opened:
            file = ChecksummedFile(opened)
            write(file)
            file.flush()
            os.fsync(opened.fileno())
        temporary.replace(path)
    except BaseException as error:  # on a full disk an unfinished file would take the space that the next one needs
        temporary.unlink(missing_ok=True)
        if file is not None and file.error is not None:
            raise file.error from error
        raise
    sync_folder(path.parent)
    return file


def read_and_hash(path: Path, moved: Callable[[], None]) -> tuple[bytearray, str]:
    """The content of a file, and its SHA-256 in hexadecimal. `moved` is called after each piece: a file may take minutes.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        content = bytearray(os.fstat(file.fileno()).st_size)
        digest = hashlib.sha256()
        done = 0
        while num_bytes := file.readinto(memoryview(content)[done : done + PIECE_BYTES]):
            digest.update(memoryview(content)[done : done + num_bytes])
            done += num_bytes
            moved()
    return content[:done] if done < len(content) else content, digest.hexdigest()


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, each name on the disk before anything is written below it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        with suppress(PermissionError):  # a folder may be created in one that cannot be read
            sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush names in a folder (creations, renames, removals) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
