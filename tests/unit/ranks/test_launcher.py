"""The launcher with ranks that are small scripts, always in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.launch.launcher import with_free_port
from testbed import wait_for

LAUNCHER = """
import os, sys
from ddpjob_ranks.launch import identity, launcher
launcher.SURVIVOR_GRACE_SECONDS = 0.5
sys.exit(launcher.run(identity.resolve(os.environ), [sys.executable, "-S", "-c", sys.argv[1]], os.environ))
"""


@contextmanager
def launched(script: str, *, ranks: int = 2, **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, script],
        env={"PYTHONPATH": ":".join(sys.path), "NPROC_PER_NODE": str(ranks), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def exit_code(script: str, **settings: str) -> int:
    with launched(script, **settings) as process:
        return process.wait(timeout=60)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids_in(folder: Path, count: int) -> list[int]:
    """The pids that ranks wrote as file names, once all of them are there."""
    wait_for(f"{count} ranks in {folder}", lambda: len(list(folder.iterdir())) == count, seconds=30)
    return [int(path.name) for path in folder.iterdir()]


def test_the_exit_code_is_0_if_all_ranks_succeed():
    assert exit_code("pass", ranks=3) == 0


def test_every_rank_has_its_own_variables(tmp_path):
    script = f"""
import json, os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "OWN"]
open(f"{tmp_path}/" + os.environ["RANK"], "w").write(json.dumps([os.environ[name] for name in names]))
"""
    pod = {"RANK": "2", "WORLD_SIZE": "4", "NODE_RANK": "1", "MASTER_ADDR": "m", "MASTER_PORT": "1", "OWN": "x"}
    assert exit_code(script, **pod) == 0
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert found == {"2": ["2", "4", "0", "2", "m", "1", "1", "x"], "3": ["3", "4", "1", "2", "m", "1", "1", "x"]}


def test_the_first_failure_is_the_exit_code_and_ends_the_others():
    started = time.monotonic()
    assert exit_code("import os, time; time.sleep(600 * (os.environ['RANK'] != '1')); os._exit(42)", ranks=3) == 42
    assert time.monotonic() - started < 30


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path):
    script = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"{tmp_path}/{{os.getpid()}}", "w")
while len(os.listdir("{tmp_path}")) < 2: time.sleep(0.01)
if os.environ["RANK"] == "0": os._exit(3)
time.sleep(600)
"""
    with launched(script) as process:
        pids = pids_in(tmp_path, 2)
        assert process.wait(timeout=60) == 3
        assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("first", [0, 1])
def test_a_lost_peer_is_never_the_cause_when_another_rank_failed(first):
    script = f"""
import os, time
if os.environ["RANK"] == "{first}": os._exit({contract.EXIT_PEER_LOST})
time.sleep(0.5); os._exit(7)
"""
    assert exit_code(script) == 7


def test_a_lost_peer_is_the_exit_code_when_the_cause_is_on_another_node():
    assert exit_code(f"import os; os._exit({contract.EXIT_PEER_LOST})") == contract.EXIT_PEER_LOST


def test_a_killed_rank_has_exit_code_128_plus_the_signal_and_a_message(tmp_path):
    message = tmp_path / "termination-log"
    message.touch()
    script = "import os, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(600)"
    assert exit_code(script, DDPJOB_TERMINATION_LOG=str(message)) == 137
    assert message.read_text() == "rank 1\nkilled by SIGKILL"


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

def end(code):  # rank 1 has failed
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
    ranks = launcher.Ranks(identity.resolve(os.environ), lambda _: start(sys.argv[1]), lambda _: True, follow=follow)
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


def test_the_message_of_a_rank_is_not_overwritten(tmp_path):
    message = tmp_path / "termination-log"
    message.touch()
    script = """
import os, time
if os.environ["RANK"] == "1": time.sleep(600)
open(os.environ["DDPJOB_TERMINATION_LOG"], "w").write("own message")
os.kill(os.getpid(), 9)
"""
    assert exit_code(script, DDPJOB_TERMINATION_LOG=str(message)) == 137
    assert message.read_text() == "own message"


def test_ranks_that_end_with_a_checkpoint_are_waited_for():
    script = f"""
import os, time
if os.environ["RANK"] == "1": time.sleep(1); print("saved", flush=True)
os._exit({contract.EXIT_CHECKPOINTED})
"""
    with launched(script) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == contract.EXIT_CHECKPOINTED
    assert out == "saved\n"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_every_rank(tmp_path, sent):
    script = f"""
import os, signal, time
signal.signal({int(sent)}, lambda *_: os._exit(75))
open(f"{tmp_path}/{{os.getpid()}}", "w")
time.sleep(600)
"""
    with launched(script, ranks=3) as process:
        pids_in(tmp_path, 3)
        process.send_signal(sent)
        assert process.wait(timeout=30) == 75


def test_no_rank_outlives_a_killed_launcher(tmp_path):
    script = f'import os, time; open(f"{tmp_path}/{{os.getpid()}}", "w"); time.sleep(600)'
    with launched(script, ranks=3) as process:
        pids = pids_in(tmp_path, 3)
        process.kill()
        process.wait(timeout=30)
        wait_for("the ranks to die with their launcher", lambda: not any(map(is_running, pids)), seconds=30)


def test_as_pid_1_it_reaps_orphans_and_passes_sigterm_on(tmp_path):
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to make a PID namespace")
    script = f"""
import os, signal, time
if os.fork() == 0:                      # a child that leaves an orphan, which ends at once
    if os.fork() > 0: os._exit(0)
    time.sleep(0.1); os._exit(0)
signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
def zombies():
    stats = [open(f"/proc/{{p}}/stat").read().rsplit(")", 1)[1].split() for p in os.listdir("/proc") if p.isdigit()]
    return [s for s in stats if s[0] == "Z" and s[1] == "1"]
os.wait(); time.sleep(1)
open("{tmp_path}/" + os.environ["RANK"], "w").write(str(len(zombies())))
os.rename("{tmp_path}/" + os.environ["RANK"], "{tmp_path}/done" + os.environ["RANK"])
time.sleep(600)
"""
    process = subprocess.Popen(
        [*unshare, sys.executable, "-c", LAUNCHER, script],
        env={"PYTHONPATH": ":".join(sys.path), "NPROC_PER_NODE": "2", "PATH": os.environ["PATH"]},
    )
    try:
        wait_for("both ranks to look for zombies", lambda: len(list(tmp_path.glob("done*"))) == 2, seconds=30)
        assert [path.read_text() for path in tmp_path.glob("done*")] == ["0", "0"]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)  # PID 1 of the namespace
        assert process.wait(timeout=30) == 75
    finally:
        process.kill()
        process.wait()


def test_without_an_address_ranks_meet_at_a_free_port():
    with with_free_port({"NPROC_PER_NODE": "2"}) as one, with_free_port({"NPROC_PER_NODE": "2"}) as other:
        assert one[contract.MASTER_PORT] != other[contract.MASTER_PORT]
        with socket.create_server(("", int(one[contract.MASTER_PORT]))):
            pass  # rank 0 can open it


@pytest.mark.parametrize("name", [contract.MASTER_ADDR, contract.MASTER_PORT])
def test_an_address_that_was_given_is_kept(name):
    given = {"NPROC_PER_NODE": "2", name: "7"}
    with with_free_port(given) as environ:
        assert environ == given


def test_a_late_signal_does_not_change_the_exit_code(tmp_path):
    script = f"""
import os, signal
received = []
signal.signal(signal.SIGTERM, lambda *_: received.append(True))
open(f"{tmp_path}/{{os.getpid()}}", "w")
while len(received) < 20: signal.pause()
os._exit(75)
"""
    with launched(script) as process:
        pids_in(tmp_path, 2)
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.returncode == 75
