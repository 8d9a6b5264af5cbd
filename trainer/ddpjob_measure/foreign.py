"""Training code of others, as it is, from a folder that is carried to the machine: airbench94 and torchvision's reference loop.

`python -m ddpjob_measure.foreign SCRIPT` runs a script such as airbench94.py on the images of the recipe `speedrun-cifar10`, and
prints a line for each of its runs. `reference_loop` is a program of a task, in whose folder is torchvision's `train.py`.
"""

import argparse
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from ddpjob_measure import measuring
from ddpjob_measure.measuring import Measured
from ddpjob_measure.task import Task
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.launch import identity
from ddpjob_trainer import recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.data import ImageData, Split

#: Begins the line of a run.
PREFIX = "foreign "
NUM_RUNS = 3


def runs(lines: Iterable[str]) -> Iterator[dict[str, float]]:
    """Accuracy and seconds of each run but the first, which compiles, by the table that airbench94 prints."""
    warm = False
    for line in lines:
        match [cell.strip() for cell in line.strip().strip("|").split("|")]:
            case [_, "eval", _, plain, augmented, seconds]:
                if warm:
                    yield {
                        "accuracy %": 100 * float(plain),
                        "with test-time augmentation %": 100 * float(augmented),
                        "training s": float(seconds),
                    }
                warm = True


def main() -> int:
    """Run the script until it has printed enough; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddpjob_measure.foreign", description=__doc__)
    parser.add_argument("script", type=Path)
    script: Path = parser.parse_args().script.absolute()
    with tempfile.TemporaryDirectory() as folder:
        _save_images(Path(folder, "cifar10"))
        command = [sys.executable, "-u", str(script)]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number, row in zip(range(NUM_RUNS), runs(_echoed(process.stdout)), strict=False):
                print(PREFIX + " ".join(f"{value:.4f}" for value in (number, *row.values())), flush=True)
            process.kill()
    return 0


def _echoed(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        print(line, end="", flush=True)
        yield line


def _save_images(folder: Path) -> None:
    """As airbench94 keeps what it has downloaded: images of shape (samples, rows, columns, channels), and labels."""
    recipe = recipes.find("speedrun-cifar10")
    config = recipes.resolve(parse_config({"recipe": "speedrun-cifar10"}))
    data = recipe.data(measuring.data_dir(), config)
    assert isinstance(data, ImageData)
    folder.mkdir()
    for name, split in (("train", data.train), ("test", data.test)):
        assert isinstance(split, Split)
        images_NHWC = split.images_NCHW.permute(0, 2, 3, 1).contiguous()  # noqa: N806 - a shape
        kept = {"images": images_NHWC, "labels": split.labels_N, "classes": list(range(data.num_classes))}
        torch.save(kept, folder / f"{name}.pt")


def reference_loop(task: Task, _: identity.Worker, gang: Gang) -> Measured:
    """`train_one_epoch` of torchvision's train.py on the network of the recipe, with a batch that waits in host memory."""
    sys.path.insert(0, str(task.options["folder"]))
    reference = import_module("train")
    config = recipes.resolve(parse_config(task.config))
    model = measuring.network(config).to(gang.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    mixed = gang.device.type == "cuda"
    scaler = torch.amp.GradScaler("cuda") if mixed else None
    given = Namespace(print_freq=1000, clip_grad_norm=None, amp=mixed, model_ema_steps=1, lr_warmup_epochs=0)
    size = task.options["size"]
    images_BCHW = torch.rand(config.global_batch_size, 3, size, size, pin_memory=mixed)  # noqa: N806 - a shape
    batches = [(images_BCHW, torch.randint(10, (config.global_batch_size,)))]
    criterion = nn.CrossEntropyLoss()

    def take_step(_: int, begin: Callable[[], None]) -> None:
        begin()
        reference.train_one_epoch(model, criterion, optimizer, batches, gang.device, 0, given, None, scaler)

    return Measured(replica=model, optimizer=optimizer, take_step=take_step, global_batch_size=config.global_batch_size)


if __name__ == "__main__":
    sys.exit(main())
