"""Figures of a measured training."""

from typing import Any

from ddpjob_measure.task import PARTS, Figures, Spread


def figures(world_size: int, images_per_second: float, batch: int = 64, **more: Any) -> Figures:
    """As ranks of this number would print them at this speed."""
    seconds = batch / images_per_second
    fields = {
        "world_size": world_size,
        "device": "cpu",
        "global_batch_size": batch,
        "images_per_second": Spread.of([images_per_second, images_per_second * 0.9, images_per_second * 1.2]),
        "step_seconds": Spread.of([seconds]),
        "cpu_seconds": Spread.of([world_size * seconds]),
        "part_seconds": {part: Spread.of([seconds / len(PARTS)]) for part in PARTS},
        "peak_memory_bytes": 2**20,
    }
    return Figures(**{**fields, **more})
