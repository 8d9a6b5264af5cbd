"""`buckets`: DDP's bucket plan for a recipe, and how much of the all-reduce hides behind backward."""

import argparse
from typing import Any

from ddpjob_measure import images, processes, record
from ddpjob_measure.options import positive
from ddpjob_measure.surroundings import headline, surroundings
from ddpjob_measure.task import Figures, Task
from ddpjob_trainer.recipe_names import short_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--recipe", choices=short_names(), default="resnet18-cifar10")
    parser.add_argument("--ranks", type=positive, default=2, help="number of processes (default: 2)")
    parser.add_argument("--batch", type=positive, default=32, help="global batch (default: 32)")
    parser.add_argument("--steps", type=positive, default=6, help="observed steps (default: 6)")
    parser.add_argument("--bucket-cap-mb", type=int, default=0, help="the trainer's bucketCapMb (default: DDP's own)")


def run(given: argparse.Namespace) -> int:
    """Measure and print."""
    keys = {"recipe": given.recipe, "globalBatchSize": given.batch, "bucketCapMb": given.bucket_cap_mb}
    task = Task(program="buckets", config=keys, warmup_steps=1, steps=given.steps, windows=1)
    with images.provided([given.recipe], num_train=given.batch) as (environ, _):
        figures = processes.run(task, world_size=given.ranks, environ=environ)
    print(headline(surroundings()))
    print("\n" + report(figures, given.recipe))
    return 0


def report(figures: Figures, recipe: str) -> str:
    """The plan as a table, then what was seen of the overlap."""
    seen = figures.extra
    lines = [[index, *_row(bucket)] for index, bucket in enumerate(seen["plan"])]
    total = sum(bucket["bytes"] for bucket in seen["plan"])
    on_the_way, hidden = seen["on_the_way_seconds"], seen["hidden_seconds"]
    return "\n".join(
        [
            f"{recipe}: {len(lines)} buckets, {total / 2**20:.1f} MiB of gradients, in the order of their all-reduce",
            "",
            record.table(["bucket", "MiB", "parameters", "first", "last"], lines),
            "",
            f"With {figures.world_size} ranks on {figures.device}, step of {figures.step_seconds.median * 1e3:.1f} ms:",
            (
                f"- buckets are on their way for {on_the_way * 1e3:.1f} ms, of which {hidden * 1e3:.1f} ms"
                f" ({100 * hidden / on_the_way:.0f} %) are hidden behind backward (waits for slower ranks count)"
            ),
            f"- the same buckets reduced alone, with nothing else going on: {seen['alone_seconds'] * 1e3:.1f} ms",
        ]
    )


def _row(bucket: dict[str, Any]) -> list[str]:
    parameters = bucket["parameters"]
    return [f"{bucket['bytes'] / 2**20:.2f}", str(len(parameters)), parameters[0], parameters[-1]]
