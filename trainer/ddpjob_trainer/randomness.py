# ruff: noqa: N803 - tensors carry their shape in their name
"""Random numbers that are a function of (seed, epoch, sample id) and of nothing else.

No generator, so no state to save, and the same numbers at any world size, on any device, after any restart.
"""

from typing import TypeVar

import torch

#: What a number is for; streams are independent of each other. All from CROP on belong to random crops.
ORDER, SHIFT_ROWS, SHIFT_COLUMNS, FLIP, CROP = range(5)

_MASK = 0xFFFFFFFF
Number = TypeVar("Number", int, torch.Tensor)


def uniform_integers(ids_N: torch.Tensor, *, seed: int, epoch: int, stream: int) -> torch.Tensor:
    """One integer in [0, 2^32) for each sample id (int64), as int64 on the same device."""
    key = seed
    for value in (stream, epoch):
        key = _mix((_mix(key) + value) & _MASK)
    return _mix((_mix(ids_N ^ key) + key) & _MASK)


def _mix(x: Number) -> Number:
    """A bijection of 32-bit integers with low bias (Chris Wellons' `lowbias32`, found by hash-prospector).

    Held in int64: a product may wrap, which leaves its low 32 bits right.
    """
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
