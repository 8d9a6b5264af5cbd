"""`python -m ddpjob_measure.killed`: the trainer with a rank that kills itself once, to measure a restart in place.

When it is killed it holds most of the GPU's memory, and so does a process that it has forked, as data workers are. The state is copied into memory as on GPUs, and more often than usual, since the trainings that this is for take seconds. The
arguments are the trainer's.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping

import torch

from ddpjob_ranks import contract
from ddpjob_ranks.launch import command
from ddpjob_session.memory import at_exit, periodic
from ddpjob_session.observers import Observer

#: The lines that tell when the rank was killed, and when its successor reported its first step, by the monotonic clock; with
#: the GiB that are free on the GPU, and the process that the killed rank leaves behind.
KILLED_LINE = "killed after step {step} at {seconds:.3f}, {free:.3f} GiB free, leaving {worker}"
DONE_LINE = "step {step} after the restart at {seconds:.3f}, {free:.3f} GiB free"
#: The part of the free memory that the rank takes before it is killed.
TAKEN = 0.6
#: So long after the first step the rank is killed: enough for some copies.
KILL_SECONDS = 2.0
#: The time between two copies, at least.
PAUSE_SECONDS = 0.1


class Killer(Observer):
    """Kills its process by SIGKILL, in the first generation of ranks."""

    def __init__(self) -> None:
        """Read the number of the generation, which the launcher sets."""
        self._generation = int(os.environ.get(contract.DDPJOB_GENERATION, "1"))
        self._first_at: float | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:  # noqa: ARG002
        """Report the first step of the next rank, or end the process if it is time."""
        now = time.monotonic()
        if self._generation > 1 and self._first_at is None:
            print(DONE_LINE.format(step=step, seconds=now, free=free_gib()), flush=True)
        self._first_at = self._first_at or now
        if self._generation == 1 and now >= self._first_at + KILL_SECONDS:
            taken = torch.empty(int(TAKEN * 2**30 * free_gib()), dtype=torch.uint8, device=device())
            worker = os.fork()
            if worker == 0:
                signal.pause()  # as a data worker that nobody asks for a batch
            print(KILLED_LINE.format(step=step, seconds=time.monotonic(), free=free_gib(), worker=worker), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            del taken  # so long it is in use


def device() -> str:
    """Of this rank, which is alone."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def free_gib() -> float:
    """GiB that are free on the GPU; none on a CPU, where nothing is taken."""
    return torch.cuda.mem_get_info()[0] / 2**30 if torch.cuda.is_available() else 0.0


def copy_often() -> None:
    """Have this process copy the state into memory as on GPUs, and as often as trainings of seconds need it."""
    at_exit.DEVICES = ()  # type: ignore[misc, assignment]
    periodic.PAUSE_SECONDS = PAUSE_SECONDS  # type: ignore[misc]


def main(arguments: list[str]) -> int:
    """Run the launcher, or in its environment the rank; returns the exit code."""
    if contract.DDPJOB_GENERATION not in os.environ:
        return command.start(["-m", "ddpjob_measure.killed", *arguments], os.environ, ["ddpjob_trainer.worker"])
    from ddpjob_trainer import __main__ as trainer

    copy_often()
    return trainer.main([*arguments, "--set", f'observers=["{__spec__.name}:{Killer.__name__}"]'])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
