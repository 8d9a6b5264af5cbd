"""A script or the trainer whose ranks keep their state as those on GPUs do: by copies while they train.

It is started by `ddpjob.launch`. The first argument is the program, a file.
"""

import runpy
import sys

from ddpjob_session.memory import at_exit, periodic

FILE = __file__


if __name__ == "__main__":
    at_exit.DEVICES = ()  # type: ignore[misc,assignment]
    periodic.PAUSE_SECONDS = 0.02  # type: ignore[misc] # shorter
    program = sys.argv.pop(1)
    runpy.run_path(program, run_name="__main__")
