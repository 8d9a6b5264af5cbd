import os
import subprocess
import sys

from ddpjob_measure import usage

SPIN = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"


def test_cpu_time_is_that_of_the_process_and_its_children() -> None:
    before, own = usage.cpu_seconds(), os.times()
    command = [sys.executable, "-c", SPIN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it has used its time, and lives
        found = usage.cpu_seconds() - before
        now = os.times()
        child.communicate(b"\n")
    mine = now.user + now.system - own.user - own.system
    assert found >= mine + 0.2 - 0.04  # four numbers are rounded down to 10 ms
