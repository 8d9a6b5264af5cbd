"""The generators of random numbers of one rank: Python's, NumPy's, and torch's on the CPU and on the device."""

import random
import sys
from typing import Any

import torch


def state(device: torch.device) -> dict[str, Any]:
    """Their state, of types that a checkpoint can hold. NumPy's is included once the program has imported NumPy."""
    version, numbers, gauss = random.getstate()
    found: dict[str, Any] = {"python": (version, torch.tensor(numbers), gauss), "torch": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        name, keys, *rest = numpy.random.get_state()
        found["numpy"] = (name, torch.tensor(keys.tolist()), *rest)
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
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
