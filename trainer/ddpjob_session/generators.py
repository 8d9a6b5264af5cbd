"""What one rank knows: the generators of random numbers of Python, NumPy and torch, and the parts that a script tracks for each rank."""

import random
from collections.abc import Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from ddpjob_session.state import plain


class Captured(NamedTuple):
    """Their state as the libraries give it, which takes 0.1 ms."""

    python: Any
    numpy: Any
    torch: bytes
    cuda: bytes | None
    parts: dict[str, Any]


def capture(device: torch.device, parts: Mapping[str, Any] = MappingProxyType({})) -> Captured:
    """Their state now. `parts` are those of this rank alone."""
    return Captured(
        parts={name: deepcopy(part.state_dict()) for name, part in parts.items()},
        python=random.getstate(),
        numpy=np.random.get_state(),
        torch=torch.get_rng_state().numpy().tobytes(),
        cuda=torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else None,
    )


def state(captured: Captured) -> dict[str, Any]:
    """The same, of types that a checkpoint can hold."""
    version, numbers, gauss = captured.python
    name, keys, *rest = captured.numpy
    found: dict[str, Any] = {
        "python": (version, torch.tensor(numbers, device="cpu"), gauss),
        "numpy": (name, torch.tensor(keys.tolist(), device="cpu"), *rest),
        "torch": _tensor(captured.torch),
    }
    if captured.cuda is not None:
        found["cuda"] = _tensor(captured.cuda)
    if captured.parts:
        found["parts"] = plain(captured.parts)
    return found


def restore(found: dict[str, Any], device: torch.device) -> None:
    """Continue the sequences of numbers that `state` described."""
    version, numbers, gauss = found["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    torch.set_rng_state(found["torch"].clone())  # a view into a larger storage, as loaded, ends torch 2.15 by SIGSEGV
    name, keys, *rest = found["numpy"]
    np.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    if device.type == "cuda" and "cuda" in found:
        torch.cuda.set_rng_state(found["cuda"].clone(), device)


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
