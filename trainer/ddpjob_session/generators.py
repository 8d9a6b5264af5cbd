"""The generators of random numbers of one rank: Python's, NumPy's, and torch's on the CPU and on the device."""

import random
from typing import Any, NamedTuple

import numpy as np
import torch


class Captured(NamedTuple):
    """Their state as the libraries give it, which takes 0.1 ms."""

    python: Any
    numpy: Any
    torch: bytes
    cuda: bytes | None


def capture(device: torch.device) -> Captured:
    """Their state now."""
    return Captured(
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
        "python": (version, torch.tensor(numbers), gauss),
        "numpy": (name, torch.tensor(keys.tolist()), *rest),
        "torch": _tensor(captured.torch),
    }
    if captured.cuda is not None:
        found["cuda"] = _tensor(captured.cuda)
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
