"""Runs the digits as `ddpjob run --local` does, kills rank 1 by SIGKILL, and prints what happens until the next step is done."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

#: Longest wait for anything, in seconds. A machine with much else to do needs a minute to import torch.
DEADLINE_SECONDS = 240.0
POLL_SECONDS = 0.005
KILL_AT_STEP = 60
JOB = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "metadata": {"name": "recovery"},
    "spec": {
        "nodes": 2,
        "trainer": {"recipe": "digits", "epochs": 8, "logEverySteps": 1},
        "restart": {"inPlace": True},
    },
}
STEP_DONE = r"^epoch \d+ step (\d+)/\d+ loss"
RESUMED = r"^resumed from .*$"


class Demonstration:
    """A local run in a directory of its own."""

    def __init__(self, folder: Path) -> None:
        job = folder / "recovery.yaml"
        job.write_text(json.dumps(JOB))
        command = [sys.executable, "-m", "ddpjob_cli", "run", "--local", str(job)]
        self._folder = folder
        self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def log(self, node_rank: int) -> str:
        """What the pod has printed so far."""
        texts = self._folder.glob(f".ddpjob/runs/*/logs/recovery-1-{node_rank}.log")
        return "".join(path.read_text(errors="replace") for path in texts)

    def wait_for(self, node_rank: int, pattern: str) -> re.Match[str]:
        """The first match in the log of the pod, once it is there.

        Raises:
            RuntimeError: the run ended without it, or it did not come in time.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            has_ended = self.process.poll() is not None
            if match := re.search(pattern, self.log(node_rank), re.MULTILINE):
                return match
            if has_ended or time.monotonic() > deadline:
                raise RuntimeError(f"the log of rank {node_rank} has no {pattern!r}:\n{self.log(1)}\n{self.log(0)}")
            time.sleep(POLL_SECONDS)

    def pid_of(self, rank: int) -> int:
        """The process of the rank, which is named after it and has the directory of this run in its environment."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_rank = (process / "comm").read_text().strip() == f"rank {rank}"
                if is_rank and os.fsencode(self._folder) in (process / "environ").read_bytes():
                    return int(process.name)
            except OSError:  # it has ended, or belongs to another user
                continue
        raise RuntimeError(f"no process is named rank {rank}:\n{self.log(0)}")


def main() -> int:
    """Run the demonstration; the exit code is that of the training."""
    with TemporaryDirectory(prefix="ddpjob-recovery-") as name:
        run = Demonstration(Path(name))
        try:
            print("two ranks start, each as a process of this machine")
            run.wait_for(0, rf"^epoch \d+ step {KILL_AT_STEP}/\d+ loss")
            killed = time.monotonic()
            os.kill(run.pid_of(1), signal.SIGKILL)
            print(f"step {KILL_AT_STEP} is done; kill -9 of rank 1")
            for node_rank, pattern in ((1, r"^ddpjob launcher: .* in place .*$"), (0, RESUMED)):
                line = run.wait_for(node_rank, pattern)[0]
                print(f"{time.monotonic() - killed:6.2f} s  {line}")
            step = run.wait_for(0, rf"{RESUMED}[\s\S]*?{STEP_DONE}")[1]
            print(f"{time.monotonic() - killed:6.2f} s  step {step} is done")
            code = run.process.wait(timeout=DEADLINE_SECONDS)
            steps = re.findall(STEP_DONE, run.log(0), re.MULTILINE)
            accuracy = re.findall(r"accuracy (\S+ %)", run.log(0))[-1]
            repeated = len(steps) - len(set(steps))
            # The step during which rank 0 was stopped is done, since training resumed after it, but may have left no line.
            print(f"{steps[-1]} steps in all, {repeated} of them repeated; accuracy {accuracy}")
        finally:
            run.process.terminate()
            run.process.wait(timeout=DEADLINE_SECONDS)
    return code


if __name__ == "__main__":
    sys.exit(main())
