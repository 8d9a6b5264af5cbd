"""Runs the digits as `ddpjob run --local` does, kills rank 1 by SIGKILL, and prints what happens until the next step is done."""

import re
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.recovery.training import DEADLINE_SECONDS, GOES_ON, KILL_AT_STEP, STEP_DONE, Training

IN_PLACE = re.compile(r"^ddpjob launcher: .* in place .*$", re.MULTILINE)
RESUMED = re.compile(r"^resumed from .*$", re.MULTILINE)


def main() -> int:
    """Run the demonstration; the exit code is that of the training."""
    with TemporaryDirectory(prefix="ddpjob-recovery-") as name, ExitStack() as stack:
        run = Training(Path(name), stack)
        process = run.run_local(
            trainer={"recipe": "digits", "epochs": 8, "logEverySteps": 1}, restart={"inPlace": True}
        )
        print("two ranks start, each as a process of this machine", flush=True)
        run.wait_for_step(KILL_AT_STEP)
        killed = time.monotonic()
        run.kill_rank_1()
        print(f"step {KILL_AT_STEP} is done; kill -9 of rank 1")
        for rank, pattern in ((1, IN_PLACE), (0, RESUMED)):
            line = run.wait_for(pattern, text=partial(run.text, rank))[0]
            print(f"{time.monotonic() - killed:6.2f} s  {line}")
        step = run.wait_for(GOES_ON)[2]
        print(f"{time.monotonic() - killed:6.2f} s  step {step} is done", flush=True)
        code = process.wait(timeout=DEADLINE_SECONDS)
        steps = STEP_DONE.findall(run.text())
        accuracy = re.findall(r"accuracy (\S+ %)", run.text())[-1]
        # The step during which rank 0 was stopped is done, since training resumed after it, but may have left no line.
        print(f"{steps[-1]} steps in all, {len(steps) - len(set(steps))} of them repeated; accuracy {accuracy}")
    return code


if __name__ == "__main__":
    sys.exit(main())
