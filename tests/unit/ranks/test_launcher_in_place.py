"""A launcher that starts its ranks again in place: the store, what follows other nodes, and requests to stop meanwhile."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from testbed import wait_for

SERVER_IS_KILLED = """
import os, sys
from ddpjob_ranks.launch import identity, launcher
launcher.SURVIVOR_GRACE_SECONDS = 0.1
with launcher.signals_blocked():
    start = lambda *_: os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
    server = start()
    ranks = launcher.Ranks(identity.resolve(os.environ), start, server=server)
    os.kill(server, 9)
    ranks.wait()
sys.exit(ranks.exit_code)
"""


def test_the_end_of_the_process_that_serves_the_store_ends_the_ranks_and_is_the_cause(tmp_path):
    message = tmp_path / "termination-log"
    message.touch()
    environ = {**os.environ, "NPROC_PER_NODE": "2", "DDPJOB_TERMINATION_LOG": str(message)}
    done = subprocess.run([sys.executable, "-c", SERVER_IS_KILLED], env=environ, timeout=60, check=False)
    assert done.returncode == 137
    assert message.read_text() == "the process that serves the store of all ranks was killed by SIGKILL"


SERVER_IS_KILLED_WHILE_RANKS_SAVE = """
import os, signal, sys
from ddpjob_ranks.launch import identity, launcher
calls, wait = [], signal.sigtimedwait

def end(code, _):  # rank 1 has failed
    os.kill(server, 9)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    return True

def sigtimedwait(signals, timeout):
    calls.append(timeout)
    if ranks.to_be_restarted is False and ranks.exit_code:
        os.kill(min(ranks.running), 9)  # which saves until now
    return wait(signals, min(timeout, 5))

def start(worker=None):
    script = "import os; os._exit(3)" if worker and worker.rank else "import time; time.sleep(600)"
    return os.posix_spawn(sys.executable, [sys.executable, "-c", script], os.environ)

with launcher.signals_blocked():
    server = start()
    signal.sigtimedwait = sigtimedwait
    ranks = launcher.Ranks(identity.resolve(os.environ), start, end, server=server)
    launcher.SAVE_SECONDS = 60.0
    ranks.wait()
print(ranks.to_be_restarted, 0.0 in calls)
sys.exit(ranks.exit_code)
"""


def test_ranks_do_not_start_again_without_the_process_that_serves_the_store():
    """Two failures at once on node 0. The next ranks would wait for the store for minutes, and end with exit code 2."""
    environ = {**os.environ, "NPROC_PER_NODE": "2"}
    command = [sys.executable, "-c", SERVER_IS_KILLED_WHILE_RANKS_SAVE]
    done = subprocess.run(command, env=environ, timeout=120, check=False, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (3, "False False\n")


FOLLOWED = """
import os, sys
from ddpjob_ranks.launch import identity, launcher
with launcher.signals_blocked() as mask:
    def start(script):
        return os.posix_spawn(sys.executable, [sys.executable, "-c", script], os.environ, setsigmask=mask)
    def follow():
        print(follower := start("import sys; sys.stdin.readline()"), flush=True)
        return follower
    ranks = launcher.Ranks(identity.resolve(os.environ), lambda _: start(sys.argv[1]), lambda *_: True, follow=follow)
    ranks.wait()
sys.exit(ranks.exit_code)
"""


@contextmanager
def followed(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A launcher that prints the pid of each process that follows other nodes, which ends in order after a line of stdin."""
    with (folder / "followers").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", FOLLOWED, script],
            env={**os.environ, "NPROC_PER_NODE": "2"},
            stdin=subprocess.PIPE,
            stdout=output,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # ranks and followers, too
        process.communicate()


def follower_in(folder: Path, number: int) -> int:
    """The pid of what follows other nodes after so many starts."""

    def pids() -> list[str]:
        return (folder / "followers").read_text().split("\n")[:-1]

    wait_for(
        f"the launcher to start what follows other nodes {number} times", lambda: len(pids()) >= number, seconds=60
    )
    return int(pids()[number - 1])


def test_what_follows_other_nodes_is_started_again_after_a_kill(tmp_path):
    """Otherwise ranks that hang here would not start again with the others."""
    script = f"""
import pathlib, time
while not pathlib.Path("{tmp_path}/end").exists(): time.sleep(0.01)
raise SystemExit({contract.EXIT_PEER_LOST})
"""
    with followed(script, tmp_path) as process:
        assert process.stdin is not None
        for number in (1, 2):
            os.kill(follower_in(tmp_path, number), signal.SIGKILL)
        follower = follower_in(tmp_path, 3)
        process.stdin.write("the others have started again\n")
        process.stdin.flush()
        wait_for("the launcher to notice that", lambda: not Path(f"/proc/{follower}").exists(), seconds=60)
        (tmp_path / "end").touch()
        assert process.wait(timeout=60) == contract.EXIT_PEER_LOST
    assert len((tmp_path / "followers").read_text().split()) == 3


def test_a_pod_that_is_asked_to_stop_ends_in_order_though_the_others_have_started_again(tmp_path):
    """They do so as soon as their ranks have left, and those of this pod may take longer to end."""
    script = f"""
import os, pathlib, signal, time
requests = []
signal.signal(signal.SIGTERM, lambda *_: requests.append(1))
folder = pathlib.Path("{tmp_path}")
(folder / f"started {{os.getpid()}}").touch()
while not requests: time.sleep(0.01)
(folder / f"asked {{os.getpid()}}").touch()
while not (folder / "end").exists(): time.sleep(0.01)
os._exit({contract.EXIT_CHECKPOINTED} if len(requests) == 1 else 1)
"""
    with followed(script, tmp_path) as process:
        assert process.stdin is not None
        follower = follower_in(tmp_path, 1)
        wait_for("two ranks to start", lambda: len(list(tmp_path.glob("started *"))) == 2, seconds=60)
        process.send_signal(signal.SIGTERM)
        wait_for("both to be asked to stop", lambda: len(list(tmp_path.glob("asked *"))) == 2, seconds=60)
        process.stdin.write("the others have started again\n")
        process.stdin.flush()
        wait_for("the launcher to notice that", lambda: not Path(f"/proc/{follower}").exists(), seconds=60)
        (tmp_path / "end").touch()
        assert process.wait(timeout=60) == contract.EXIT_CHECKPOINTED


STARTS_AGAIN = """
import os, pathlib, signal, sys, time
from ddpjob_ranks.launch import identity, launcher
launcher.STOP_SECONDS = float(sys.argv[2])
folder = pathlib.Path(sys.argv[1])
script = '''
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75 if pathlib.Path("begun").exists() else 3))
pathlib.Path(f"started {os.getpid()}").touch()
time.sleep(600)
'''
os.chdir(folder)
with launcher.signals_blocked() as mask:
    start = lambda _: os.posix_spawn(sys.executable, [sys.executable, "-c", script], os.environ, setsigmask=mask)
    asked = []
    def can_stop():  # the ranks begin between the first look and the second
        asked.append(1)
        if len(asked) == 2: pathlib.Path("begun").touch()
        return len(asked) >= 2
    ranks = launcher.Ranks(identity.resolve(os.environ), start, can_stop=can_stop)
    ranks.wait()
sys.exit(ranks.exit_code)
"""


@pytest.mark.parametrize(("limit", "exit_code"), [("600", contract.EXIT_CHECKPOINTED), ("0", 3)])
def test_a_request_to_stop_waits_until_ranks_that_start_again_can_save(tmp_path, limit, exit_code):
    """For a limited time, since they may have to wait for a pod that does not come."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS_AGAIN, tmp_path, limit], env={**os.environ, "NPROC_PER_NODE": "2"}
    )
    try:
        wait_for("two ranks to start", lambda: len(list(tmp_path.glob("started *"))) == 2, seconds=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == exit_code
    finally:
        process.kill()
        process.wait()


ASKED_TO_STOP_AS_IT_ENDS = """
import os, signal, sys
from ddpjob_ranks.launch import identity, launcher
with launcher.signals_blocked():
    start = lambda *_: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    ranks = launcher.Ranks(identity.node(os.environ), start)
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    os.kill(os.getpid(), signal.SIGTERM)
    ranks.wait()
print(ranks.exit_code, ranks.are_stopped)
"""


def test_a_request_to_stop_that_comes_as_a_process_ends_well_is_known():
    """The process that finds out which generation a new pod joins may have ended, and the pod is not to begin it."""
    environ = {**os.environ, "NPROC_PER_NODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASKED_TO_STOP_AS_IT_ENDS], env=environ, timeout=60, check=True, stdout=subprocess.PIPE
    )
    assert done.stdout == b"0 True\n"


ASKED_TO_STOP = """
import os, sys
from ddpjob_ranks.launch import identity, launcher
with launcher.signals_blocked() as mask:
    start = lambda _: os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ, setsigmask=mask)
    ranks = launcher.Ranks(identity.resolve(os.environ), start, lambda *_: True)
    os.kill(os.getpid(), int(sys.argv[1]))
    ranks.wait()
print(ranks.to_be_restarted)
sys.exit(ranks.exit_code)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ranks_that_are_asked_to_stop_do_not_start_again(sent):
    """SIGHUP is what a terminal sends to its programs when it is closed."""
    environ = {**os.environ, "NPROC_PER_NODE": "2"}
    command = [sys.executable, "-c", ASKED_TO_STOP, str(int(sent))]
    done = subprocess.run(command, env=environ, timeout=60, check=False, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (128 + sent, "False\n")
