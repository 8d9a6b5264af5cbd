# ruff: noqa: N806 - arrays carry their shape in their name
"""One packed file instead of an image folder: `python -m ddpjob_recipes.pack FOLDER FILE`.

A folder of a million files is slow to list, and to read over a network. One file is opened once; the page cache holds what
the ranks of a node read of it, once for all of them. It holds the images as they are, byte for byte:

    magic          8 bytes, MAGIC
    header size    8 bytes, little-endian
    header         JSON: the class names and the number of samples of each split
    labels         N x 8 bytes: int64, little-endian; training samples first, then the held-out ones
    offsets        (N + 1) x 8 bytes: where each image begins, counted from the first one; the last is where they end
    images         the files' contents
"""

import argparse
import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ddpjob_ranks.errors import ConfigError
from ddpjob_recipes.folder import EncodedImages, Splits, open_folder
from ddpjob_session.checkpoints.files import replaced

MAGIC = b"DDPJOB1\n"
#: What a packed file is called where DDPJOB_DATA_DIR names a folder, as it does in a pod.
FILE_NAME = "images.pack"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImages:
    """A split inside a packed file. Images are read from the open file when they are asked for.

    By `os.pread`, which releases the GIL while it waits for the storage. A page fault on a mapped file does not. Longest
    stop of another thread while eight threads read a cold file of 330 MB: mapped 433 to 708 ms, by `os.pread` 52 to 95 ms
    (three runs each in turn, 2 cores that also ran other programs).
    """

    path: Path
    split: str
    file: IO[bytes]
    labels: Sequence[int]
    #: Where each image begins in the file; one more than there are samples.
    offsets: NDArray[np.int64]

    def name(self, sample: int) -> str:
        """The file, and which image of it."""
        return f"{self.path}: {self.split} image {sample} (bytes {self.offsets[sample]} to {self.offsets[sample + 1]})"

    def read(self, sample: int) -> bytes:
        """The image's own bytes.

        Raises:
            OSError: the file cannot be read, or has become shorter since it was opened.
        """
        begin, end = int(self.offsets[sample]), int(self.offsets[sample + 1])
        content = os.pread(self.file.fileno(), end - begin, begin)
        if len(content) != end - begin:
            raise OSError(
                errno.EIO,
                f"{len(content)} bytes read where {end - begin} are expected; the file was replaced or cut off while the"
                " training read it",
                self.name(sample),
            )
        return content


def open_images(path: Path) -> Splits:
    """The data set at a path: a packed file, a folder that holds one under FILE_NAME, or an image folder."""
    if path.is_file():
        return open_packed(path)
    return open_packed(path / FILE_NAME) if (path / FILE_NAME).is_file() else open_folder(path)


def open_packed(path: Path) -> Splits:
    """Both splits of a packed file.

    Raises:
        ConfigError: the file is not a packed file, or is not whole.
    """
    file = path.open("rb")
    try:
        header, labels_N, offsets = _index(file)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"data: {path} is not a packed file ({error}); make one with python -m ddpjob_recipes.pack FOLDER {path}"
        ) from error
    num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes != offsets[-1]:
        raise ConfigError(
            f"data: {path} has {num_bytes} bytes, but its index ends at {offsets[-1]}; copy or pack it again"
        )
    num_train = header["train"]

    def images(split: str, part: slice) -> PackedImages:
        ends = offsets[part.start : part.stop + 1]
        return PackedImages(path=path, split=split, file=file, labels=labels_N[part].tolist(), offsets=ends)

    return Splits(
        train=images("training", slice(0, num_train)),
        test=images("held-out", slice(num_train, len(labels_N))),
        classes=header["classes"],
    )


def _index(file: IO[bytes]) -> tuple[dict[str, Any], NDArray[np.int64], NDArray[np.int64]]:
    """The header, the labels, and where in the file each image begins.

    Raises:
        ValueError, KeyError, TypeError: the file has no such index.
    """
    if (magic := file.read(len(MAGIC))) != MAGIC:
        raise ValueError(f"it begins with {magic!r}, not {MAGIC!r}")
    header = json.loads(_read_index(file, int.from_bytes(file.read(8), "little")))
    num_samples = header["train"] + header["test"]
    numbers = np.frombuffer(_read_index(file, 8 * (2 * num_samples + 1)), dtype="<i8")
    return header, numbers[:num_samples], numbers[num_samples:] + file.tell()


def _read_index(file: IO[bytes], num_bytes: int) -> bytes:
    """The next bytes of the file; ValueError where it ends before."""
    left = os.fstat(file.fileno()).st_size - file.tell()
    if not 0 <= num_bytes <= left:  # asked before reading, which would allocate whatever a damaged size says
        raise ValueError(f"its index needs {num_bytes} bytes, and {left} are left")
    return file.read(num_bytes)


def write_packed(splits: Splits, path: Path) -> None:
    """Write a packed file: whole, or not at all."""
    samples = list(_samples(splits))
    labels_N = np.array([images.labels[sample] for images, sample in samples], dtype="<i8")
    header = json.dumps(
        {"classes": splits.classes, "train": len(splits.train.labels), "test": len(splits.test.labels)}
    ).encode()
    offsets = np.zeros(len(samples) + 1, dtype="<i8")
    with replaced(path, ".") as file:
        file.write(MAGIC + len(header).to_bytes(8, "little") + header + labels_N.tobytes())
        index_at = file.tell()
        file.write(offsets.tobytes())
        for number, (images, sample) in enumerate(samples):
            offsets[number + 1] = offsets[number] + file.write(images.read(sample))
        file.seek(index_at)
        file.write(offsets.tobytes())


def _samples(splits: Splits) -> Iterator[tuple[EncodedImages, int]]:
    for images in (splits.train, splits.test):
        for sample in range(len(images.labels)):
            yield images, sample


def main(arguments: Sequence[str]) -> int:
    """Pack a folder; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddpjob_recipes.pack", description="Pack an image folder.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with train/<class>/ and test/<class>/")
    parser.add_argument("file", type=Path, metavar="FILE", help=f"to write; {FILE_NAME} in a data folder is found")
    given = parser.parse_args(arguments)
    try:
        splits = open_folder(given.folder)
        write_packed(splits, given.file)
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"{given.file}: {len(splits.train.labels)} training and {len(splits.test.labels)} held-out images of"
        f" {len(splits.classes)} classes, {given.file.stat().st_size} bytes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
