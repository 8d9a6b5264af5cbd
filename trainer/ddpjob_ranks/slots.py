"""Memory that outlives a process: slots of bytes, each with the number of the training step that it belongs to.

The launcher creates the memory (memfd_create) and ranks inherit it. A slot whose writer was killed while it wrote is empty.
Standard library only, since the launcher does not import torch.
"""

import os
import struct
from collections.abc import Callable
from typing import IO, Final

#: Step, and number of bytes that follow.
_HEADER: Final = struct.Struct("qq")
#: The step of an empty slot.
NO_STEP: Final = -1
#: Distance of two slots. Only what is written takes memory.
SLOT_BYTES: Final = 2**40


def step_of(memory: int, slot: int = 0) -> int:
    """The step of a slot; NO_STEP if it is empty."""
    header = os.pread(memory, _HEADER.size, slot * SLOT_BYTES)
    step, num_bytes = _HEADER.unpack(header) if len(header) == _HEADER.size else (NO_STEP, 0)
    return int(step) if num_bytes else NO_STEP


def read(memory: int, slot: int = 0) -> bytearray:
    """The content of a slot that is not empty."""
    with os.fdopen(memory, "rb", closefd=False) as file:
        file.seek(slot * SLOT_BYTES)
        _, num_bytes = _HEADER.unpack(file.read(_HEADER.size))
        content = bytearray(num_bytes)
        file.readinto(content)
        return content


def write(memory: int, step: int, content: bytes | Callable[[IO[bytes]], object], slot: int = 0) -> None:
    """Replace the content of a slot by bytes, or by what a function writes; it is empty until that is complete."""
    start = slot * SLOT_BYTES
    os.pwrite(memory, _HEADER.pack(NO_STEP, 0), start)
    num_bytes = 0
    # Bytes need no file, which takes three times as many system calls: ranks on CPUs write in each step.
    if isinstance(content, bytes):
        while num_bytes < len(content):  # one call writes 2 GiB at most
            num_bytes += os.pwrite(memory, memoryview(content)[num_bytes:], start + _HEADER.size + num_bytes)
    else:
        with os.fdopen(memory, "wb", closefd=False) as file:  # closing a descriptor would end a POSIX lock
            file.seek(start + _HEADER.size)
            content(file)
            num_bytes = file.tell() - start - _HEADER.size
    os.pwrite(memory, _HEADER.pack(step, num_bytes), start)


def mark(memory: int, step: int, slot: int) -> None:
    """Record a step in a slot that is for nothing else."""
    os.pwrite(memory, _HEADER.pack(step, 1), slot * SLOT_BYTES)


def empty(memory: int) -> None:
    """Give the memory of all slots back."""
    os.ftruncate(memory, 0)
