"""The trainer, started by its launcher, with faults that its ranks cause themselves: FAULTS lists them, as `fault_plan` does.

Each comes when a rank reaches a point of the training for the first time after the fault before it, so it does not depend on
the speed of the machine that all of them come. FAULTS_FOLDER has a link for each that has come, whose target is the attempt and
the generation, the step, the rank, and what there is then in its pod besides ranks: processes, threads, descriptors, and KiB of memory
that outlives ranks.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddpjob_ranks import contract
from ddpjob_ranks.launch import command

#: Number of steps between two faults at least. Without progress some faults in a row end the attempt, and a step that was
#: begun counts as reached.
LEAST_STEPS = 3
#: Those of a generation that has not begun to train.
RECOVERY_POINTS = ("rendezvous", "data", "load", "begin", "hold")


class Faults:
    """The faults of one rank in one generation."""

    def __init__(self) -> None:
        self.plan: list[dict[str, Any]] = json.loads(os.environ["FAULTS"])
        self.folder = Path(os.environ["FAULTS_FOLDER"])
        self.generation = f"{os.environ[contract.DDPJOB_ATTEMPT]}.{os.environ[contract.DDPJOB_GENERATION]}"
        self.launcher = os.getppid()
        self.rank = int(os.environ["RANK"])
        self.step = 0
        self.delayed: threading.Thread | None = None

    def at(self, point: str) -> None:
        """Cause the fault that is due here, if one is."""
        if self.delayed is not None:
            self.delayed.join()  # it comes before the next point at the latest
        number = self._newest()
        before = self._came(number - 1)
        if number and self.generation == before[0]:  # of several ranks at once, this one is still to fail
            number -= 1
            before = self._came(number - 1)
        if number == len(self.plan):
            return
        fault = self.plan[number]
        if fault["point"] != point or self.rank not in fault["ranks"]:
            return
        if point not in RECOVERY_POINTS and self.step < max(fault["step"], before[1] + LEAST_STEPS):
            return
        step = before[1] if point in RECOVERY_POINTS else self.step
        try:
            (self.folder / str(number)).symlink_to(
                f"{self.generation} {step} {self.rank} {held_by_launcher(self.launcher)}"
            )
        except FileExistsError:
            if self._came(number) != (self.generation, step):
                return
        print(f"rank {self.rank}: fault {number} ({fault['kind']} at {point} of step {step})", flush=True)
        self._cause(fault["kind"], fault["delay"])

    def _newest(self) -> int:
        """How many faults have come."""
        return len(list(self.folder.iterdir()))

    def _came(self, number: int) -> tuple[str, int]:
        """Generation and step of a fault that has come."""
        if number < 0:
            return "", 0
        generation, step, *_ = str((self.folder / str(number)).readlink()).split()
        return generation, int(step)

    def _cause(self, kind: str, delay: float) -> None:
        if kind == "raise":
            raise LookupError("the disk of sample 7 is on fire")
        if kind == "memory":
            raise MemoryError("the batch does not fit")

        def later() -> None:
            time.sleep(delay)  # into whatever comes after the point
            KINDS[kind](self.launcher)

        self.delayed = threading.Thread(target=later)
        self.delayed.start()


def held_by_launcher(launcher: int) -> str:
    """The number of processes, threads and descriptors of a launcher and its children that are no ranks, and its KiB of memory files."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii").split()
    found = [0, 0, 0]
    for process in (Path("/proc", pid) for pid in (str(launcher), *children)):
        with suppress(OSError):  # it has ended
            if not (process / "comm").read_text(encoding="utf-8").startswith("rank "):
                mine = (1, len(list((process / "task").iterdir())), len(list((process / "fd").iterdir())))
                found = [number + more for number, more in zip(found, mine, strict=True)]
    files = [file for file in Path(f"/proc/{launcher}/fd").iterdir() if str(file.readlink()).startswith("/memfd:")]
    return " ".join(map(str, [*found, sum(file.stat().st_blocks for file in files) // 2]))


#: What a rank does by the kind of its fault, with the pid of its launcher. With that its pod is lost.
KINDS: dict[str, Callable[[int], None]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda _: os._exit(1),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "pod": lambda launcher: os.kill(launcher, signal.SIGKILL),
    "gang": lambda launcher: os.kill(launcher, signal.SIGKILL),
}


def arrange() -> None:
    """Have this rank look for faults at all points."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from ddpjob_ranks import distributed, slots
    from ddpjob_session import run
    from ddpjob_trainer import loop, worker
    from ddpjob_trainer.state import TrainingState

    faults = Faults()

    def before(owner: Any, name: str, point: str) -> None:
        original = getattr(owner, name)

        def replaced(*arguments: Any, **named: Any) -> Any:
            faults.at(point)
            return original(*arguments, **named)

        setattr(owner, name, replaced)

    def count_and_take(training: loop.Training, step: int, timer: Any) -> Any:
        faults.step = step
        faults.at("step")
        result = take_step(training, step, timer)
        faults.at("updated")
        return result

    take_step = loop.Training.take_step
    loop.Training.take_step = count_and_take  # type: ignore[method-assign,assignment]
    before(torch.autograd, "backward", "backward")
    before(loop.Training, "update_weights", "gradients")
    before(loop.Training, "save", "checkpoint")
    before(loop, "evaluate", "evaluation")
    before(distributed, "rendezvous", "rendezvous")
    before(worker, "_load_data", "data")
    before(TrainingState, "load", "load")
    before(run.Run, "begin", "begin")
    before(slots, "empty", "hold")
    register_optimizer_step_post_hook(lambda *_: faults.at("optimizer"))


if __name__ == "__main__":
    if contract.DDPJOB_GENERATION not in os.environ:
        sys.exit(command.start([__file__, *sys.argv[1:]], os.environ, ["ddpjob_trainer.worker"]))
    arrange()
    from ddpjob_trainer import __main__

    sys.exit(__main__.main(sys.argv[1:]))
