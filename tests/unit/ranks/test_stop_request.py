"""A SIGTERM is noticed, shows the stacks of all threads, and never ends a rank."""

import signal
import subprocess
import sys
import time

#: Threads that call Python functions all the time. The main thread waits without the interpreter's lock, as in a
#: collective, so its own signal handler does not run.
BUSY = """
import os, signal, sys, threading
from pathlib import Path
from ddpjob_ranks.stop import StopRequest

done = threading.Event()

def work():
    while not done.is_set():
        Path("a") / "b" / "c"

def end():
    sys.stdin.read()
    done.set()

request = StopRequest()
threads = [threading.Thread(target=target) for target in (work, work, end)]
for thread in threads:
    thread.start()
print("ready", flush=True)
for thread in threads:
    thread.join()
assert request.received
child = os.fork()
if child == 0:
    os._exit(signal.set_wakeup_fd(-1) != -1)
assert os.waitpid(child, 0)[1] == 0, "a signal of the child would wake the thread of this process"
request.ignore()
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_signals_show_the_stacks_and_never_end_a_process_whose_threads_run_python(tmp_path) -> None:
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", BUSY],
            env={"PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while process.poll() is None and errors.read_text().count("SIGTERM received") < 10:
            process.send_signal(signal.SIGTERM)
            assert time.monotonic() < deadline, f"60 s passed; expected 10 dumps of stacks in\n{errors.read_text()}"
        process.stdin.close()
        assert process.wait(timeout=60) == 0, errors.read_text()[-2000:]

    assert "ddpjob stacks: SIGTERM received\nthread MainThread\n" in errors.read_text()
    assert "in work\n" in errors.read_text()
