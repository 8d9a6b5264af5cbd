"""Children of a rank end at SIGTERM, and none keeps the rank from exiting."""

import subprocess
import sys

import pytest

BEGIN = "import multiprocessing, signal, time; from ddpjob_ranks import stop; stop.StopRequest()\n"

TERMINATED = """
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
child.start()
child.terminate()
child.join()
assert child.exitcode == -signal.SIGTERM, child.exitcode
"""

POOL = """
def work():
    busy.set()
    time.sleep(600)
busy = multiprocessing.get_context("fork").Event()
with multiprocessing.get_context("fork").Pool(1) as pool:
    pool.apply_async(work)
    busy.wait()
"""

LEFT_OPEN = """
def ignore():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    time.sleep(600)
ready = multiprocessing.get_context("fork").Event()
multiprocessing.get_context("fork").Process(target=ignore, daemon=True).start()
ready.wait()
"""


@pytest.mark.parametrize(
    "program",
    [TERMINATED, POOL, LEFT_OPEN],
    ids=["a child", "a pool that is busy", "a daemon that ignores SIGTERM"],
)
def test_a_rank_ends_and_so_do_its_children(program: str) -> None:
    command, environ = [sys.executable, "-c", BEGIN + program], {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
