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
    with os.fdopen(os.dup(memory), "rb") as file:
        file.seek(slot * SLOT_BYTES)
        _, num_bytes = _HEADER.unpack(file.read(_HEADER.size))
        content = bytearray(num_bytes)
        file.readinto(content)
        return content


def write(memory: int, step: int, write_content: Callable[[IO[bytes]], object], slot: int = 0) -> None:
    """Replace the content of a slot; it is empty until that is complete."""
    start = slot * SLOT_BYTES
    os.pwrite(memory, _HEADER.pack(NO_STEP, 0), start)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.seek(start + _HEADER.size)
        write_content(file)
        num_bytes = file.tell() - start - _HEADER.size
        file.flush()
        os.pwrite(memory, _HEADER.pack(step, num_bytes), start)  # before it is closed, which ends a POSIX lock


def write_bytes(memory: int, step: int, content: bytes, slot: int = 0) -> None:
    """As `write`, with a third of its system calls: ranks on CPUs do this in each step."""
    start = slot * SLOT_BYTES
    os.pwrite(memory, _HEADER.pack(NO_STEP, 0), start)
    num_written = 0
    while num_written < len(content):  # one call writes 2 GiB at most
        num_written += os.pwrite(memory, memoryview(content)[num_written:], start + _HEADER.size + num_written)
    os.pwrite(memory, _HEADER.pack(step, num_written), start)


def mark(memory: int, step: int, slot: int) -> None:
    """Record a step in a slot that is for nothing else."""
    os.pwrite(memory, _HEADER.pack(step, 1), slot * SLOT_BYTES)


def empty(memory: int) -> None:
    """Give the memory of all slots back."""
    os.ftruncate(memory, 0)
