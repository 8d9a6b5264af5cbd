"""Measured ranks as processes of this machine."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from ddpjob_measure.task import Figures, MeasureError, Task
from ddpjob_ranks import contract
from ddpjob_ranks.launch import launcher

#: Longest time for one measured run, start of the processes included.
DEADLINE_SECONDS = 1800.0
#: Variables that would make a run a part of another job, in addition to all of Slurm's.
OF_ANOTHER_RUN = {
    *(contract.DDPJOB_CHECKPOINT_DIR, contract.DDPJOB_CHECKPOINT_URI, contract.DDPJOB_UID, contract.DDPJOB_ATTEMPT),
    *(contract.RANK, contract.LOCAL_RANK, contract.WORLD_SIZE, contract.MASTER_ADDR, contract.DDPJOB_IN_PLACE_RESTARTS),
}


def run(
    task: Task, *, world_size: int, environ: Mapping[str, str] | None = None, seconds: float = DEADLINE_SECONDS
) -> Figures:
    """The figures of a task on `world_size` ranks.

    Raises:
        MeasureError: a rank failed, or the deadline has passed.
    """
    command = ["ddpjob_measure.rank", "--task", task.to_json()]
    what = f"{task.program} on {world_size} ranks"
    return Figures.from_output(output_of(command, what, world_size=world_size, environ=environ, seconds=seconds))


def output_of(
    module: Sequence[str],
    what: str,
    *,
    world_size: int,
    environ: Mapping[str, str] | None = None,
    seconds: float = DEADLINE_SECONDS,
) -> str:
    """What a module with its arguments prints on `world_size` ranks, which the trainer's own small launcher starts.

    Raises:
        MeasureError: a rank failed, or the deadline has passed; the text begins with `what`.
    """
    command = [sys.executable, "-m", *module]
    try:
        done = subprocess.run(
            command,
            env={**variables_of_a_run(world_size), **(environ or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            preexec_fn=dies_with_this_process(),
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureError(
            f"{what}: did not end within {seconds:g} s; measure fewer steps, or a smaller batch"
        ) from error
    if done.returncode != 0:
        raise MeasureError(f"{what}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def variables_of_a_run(world_size: int) -> dict[str, str]:
    """This process's variables, with those by which the trainer starts so many ranks here, whoever started this."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in OF_ANOTHER_RUN and not name.startswith("SLURM_")
    }
    return {**ours, contract.NPROC_PER_NODE: str(world_size), contract.MASTER_PORT: str(free_port())}


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dies_with_this_process() -> Callable[[], None]:
    """For a child, before it runs its program: a measurement that is cut off must not leave it on the GPU."""
    return launcher.dies_with_this_process(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
