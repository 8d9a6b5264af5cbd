"""Files that are there whole or not at all, also after a crash of the machine."""

import os
from pathlib import Path

#: How names of unfinished files begin.
TEMPORARY_PREFIX = ".unfinished-"


def write_atomically(path: Path, content: bytes, *, unique: str) -> None:
    """Write a temporary file beside `path`, bring it to the disk, and rename it.

    Args:
        path: The file's name; a file of that name is replaced.
        content: The whole content.
        unique: Tells this writer's temporary file from that of any other writer.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{unique}-{path.name}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:  # on a full disk what is unfinished would take the room of what is to come
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring names in a folder (renames, removals) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
