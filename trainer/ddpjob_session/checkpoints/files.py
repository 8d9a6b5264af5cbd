"""A folder as the storage of checkpoints: each file and its name are flushed to the disk before the next operation."""

import hashlib
import io
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.regular_files import open_to_read
from ddpjob_session.checkpoints.storage import (
    MAX_SMALL_BYTES,
    UNFINISHED_PREFIX,
    ChecksummedFile,
    Version,
    checked_size,
)

#: How much is read at once: at 10 MB/s this takes 7 s, and the watchdog's limit is minutes.
PIECE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one folder. See `Storage` for the operations."""

    path: Path

    @property
    def location(self) -> str:
        """The path of the folder."""
        return str(self.path)

    def open(self) -> None:
        """Create the folder.

        Raises:
            ConfigError: a part of its path is a file or a planted link, or this user may not create it.
        """
        self._refuse_links()
        try:
            make_folder(self.path)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(
                f"checkpoint folder {self.path}: the path, or a part of it, is a file; set"
                f" {contract.DDPJOB_CHECKPOINT_DIR} to a folder, which is created if it does not exist"
            ) from error
        except PermissionError as error:  # not EROFS: a volume also becomes read-only while its disk fails
            raise self._not_writable(error) from error

    def names(self) -> set[str]:
        """The names of all files; none if there is no folder."""
        try:
            return {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return set()

    def read(
        self, name: str, moved: Callable[[], None] = lambda: None, *, max_bytes: int | None = None
    ) -> tuple[bytearray, str]:
        """See `Storage`."""
        with io.FileIO(open_to_read(self.path / name)) as file:
            content = bytearray(checked_size(name, os.fstat(file.fileno()).st_size, max_bytes))
            digest = hashlib.sha256()
            done = 0
            while num_bytes := file.readinto(memoryview(content)[done : done + PIECE_BYTES]):
                digest.update(memoryview(content)[done : done + num_bytes])
                done += num_bytes
                moved()
        del content[done:]
        return content, digest.hexdigest()

    def write(self, name: str, write: Callable[[ChecksummedFile], object]) -> ChecksummedFile:
        """Write a temporary file, flush it to the disk, and rename it."""
        with replaced(self.path / name, UNFINISHED_PREFIX) as opened:
            file = ChecksummedFile(opened.write).fill(write)
        sync_folder(self.path)
        return file

    def delete(self, name: str) -> None:
        """Remove the file."""
        (self.path / name).unlink(missing_ok=True)

    def look(self, name: str) -> tuple[bytes, Version] | None:
        """The content, which is its own version."""
        try:
            with io.FileIO(open_to_read(self.path / name)) as file:
                checked_size(name, os.fstat(file.fileno()).st_size, MAX_SMALL_BYTES)
                content = file.read()
        except FileNotFoundError:
            return None
        except ValueError:  # whatever it is, `replace` puts a file in its place
            content = b""
        return content, content

    def replace(self, name: str, content: bytes, version: Version | None) -> bool:
        """Look at the file, and replace it if it has not changed. Another process may write it in between.

        Raises:
            ConfigError: this user may not write there.
        """
        found = self.look(name)
        if (None if found is None else found[1]) != version:
            return False
        try:
            self.write(name, lambda file: file.write(content))
        except PermissionError as error:
            raise self._not_writable(error) from error
        return True

    def _refuse_links(self) -> None:
        """Raise ConfigError if whoever else may write on a job's volume has put a link in place of the folder.

        Elsewhere links are those of the user, whose home often has some to larger disks.
        """
        volume = Path(contract.CHECKPOINT_DIR)
        for path in (self.path, *self.path.parents):
            if volume in path.parents and path.is_symlink():
                raise ConfigError(
                    f"checkpoint folder {self.path}: {path} is a symbolic link, and checkpoints are written only to folders of"
                    " the volume itself, because others may write there too; remove the link"
                )

    def _not_writable(self, error: PermissionError) -> ConfigError:
        return ConfigError(
            f"checkpoint folder {self.path}: uid {os.getuid()} cannot write it ({error.strerror}); make the volume"
            " writable for that uid, or set template.spec.securityContext (fsGroup, runAsUser)"
        )


@contextmanager
def replaced(path: Path, prefix: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends, on the disk; after an exception nothing of it is left.

    Its own name begins with `prefix`, cannot be guessed, and must be new: whoever else may write in the folder could
    otherwise have made it a link to a file elsewhere.
    """
    temporary = path.with_name(f"{prefix}{secrets.token_hex(8)}-{path.name}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # on a full disk an unfinished file would take the space that the next one needs
        temporary.unlink(missing_ok=True)
        raise


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
