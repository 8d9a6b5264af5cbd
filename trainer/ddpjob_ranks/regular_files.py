"""Files in folders in which others may write, too: only regular files are opened, and what is written goes through no link.

Whoever shares a volume may leave a pipe, which blocks whoever opens it, or a link to a file of another volume of this pod.
"""

import errno
import os
import stat
from pathlib import Path

_SAFE = os.O_NONBLOCK | os.O_CLOEXEC


def open_to_read(path: Path) -> int:
    """The descriptor of a regular file.

    Raises:
        IsADirectoryError: it is a folder.
        ValueError: it is something else, such as a pipe.
        OSError: it cannot be read.
    """
    return _regular(os.fspath(path), os.O_RDONLY)


def no_link(path: str, flags: int) -> int:
    """The `opener` of a file that may be there already.

    Raises:
        OSError: it cannot be opened, is a link, or is no regular file.
    """
    try:
        return _regular(path, flags | os.O_NOFOLLOW)
    except ValueError as error:
        raise OSError(errno.EINVAL, "not a regular file", path) from error


def make_own_folder(path: Path) -> None:
    """Create a folder of a run within one that others may write in.

    Raises:
        OSError: it cannot be created, or somebody has put a link in its place.
    """
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "a symbolic link is in its place", str(path))


def _regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _SAFE, 0o666)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return descriptor
    os.close(descriptor)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise ValueError(f"{path} is not a regular file")
