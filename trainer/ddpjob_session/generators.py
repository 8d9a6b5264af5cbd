"""The generators of random numbers of one rank: Python's, NumPy's, and torch's on the CPU and on the device."""

import random
import sys
from typing import Any, NamedTuple

import torch


class Captured(NamedTuple):
    """Their state as the libraries give it, which takes 0.1 ms; `numpy` is None if the program has not imported it."""

    python: Any
    numpy: Any
    torch: bytes
    cuda: bytes | None


def capture(device: torch.device) -> Captured:
    """Their state now."""
    numpy = sys.modules.get("numpy")
    return Captured(
        python=random.getstate(),
        numpy=None if numpy is None else numpy.random.get_state(),
        torch=torch.get_rng_state().numpy().tobytes(),
        cuda=torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else None,
    )


def state(captured: Captured) -> dict[str, Any]:
    """The same, of types that a checkpoint can hold."""
    version, numbers, gauss = captured.python
    found: dict[str, Any] = {"python": (version, torch.tensor(numbers), gauss), "torch": _tensor(captured.torch)}
    if captured.numpy is not None:
        name, keys, *rest = captured.numpy
        found["numpy"] = (name, torch.tensor(keys.tolist()), *rest)
    if captured.cuda is not None:
        found["cuda"] = _tensor(captured.cuda)
    return found


def restore(found: dict[str, Any], device: torch.device) -> None:
    """Continue the sequences of numbers that `state` described."""
    version, numbers, gauss = found["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    torch.set_rng_state(found["torch"].clone())  # a view into a larger storage, as loaded, ends torch 2.15 by SIGSEGV
    if "numpy" in found:
        import numpy as np  # the program that saved the state had imported it; this one will

        name, keys, *rest = found["numpy"]
        np.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    if device.type == "cuda" and "cuda" in found:
        torch.cuda.set_rng_state(found["cuda"].clone(), device)


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
