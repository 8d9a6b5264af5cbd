"""Modules as processes of this machine: measured ranks, trainings and whatever else uses the device.

They end with this process, so that a measurement that is cut off leaves the GPU to the next.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
    log: Path | None = None,
) -> str:
    """What a module with its arguments prints on `world_size` ranks, which the trainer's own small launcher starts.

    `log` keeps it, and what had been printed if this process is killed.

    Raises:
        MeasureError: a rank failed, or the deadline has passed; the text begins with `what` and has the end of the output.
    """
    first = f"$ python -m {' '.join(module)}\n".encode()
    with log.open("w+b") if log else tempfile.TemporaryFile() as output:
        output.write(first)
        output.flush()
        code = _exit_code([sys.executable, "-m", *module], world_size, environ or {}, seconds, output.fileno())
        output.seek(len(first))
        text = output.read().decode(errors="replace")
        if code == 0:
            return text
        how = f"exit code {code}" if code is not None else f"did not end within {seconds:.0f} s"
        output.write(f"{how}\n".encode())
    raise MeasureError(f"{what}: {how}\n{text[-6000:]}")


def _exit_code(
    command: Sequence[str], world_size: int, environ: Mapping[str, str], seconds: float, output: int
) -> int | None:
    """Of the command, whose output goes to this file; None if it was killed at the deadline."""
    process = subprocess.Popen(
        command,
        env={**variables_of_a_run(world_size), "PYTHONUNBUFFERED": "1", **environ},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=dies_with_this_process(),
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # ranks die with their launcher
            process.wait()


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
