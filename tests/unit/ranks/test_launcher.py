"""The launcher with ranks that are small scripts, always in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.launch.launcher import with_free_port
from support.launched_ranks import LAUNCHER, exit_code, launched, pids_in
from testbed import is_running, wait_for


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
    assert exit_code("import os, time; time.sleep(600 * (os.environ['RANK'] != '1')); os._exit(42)", ranks=3) == 42


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


def test_a_killed_rank_has_exit_code_128_plus_the_signal_and_a_message(tmp_path):
    message = tmp_path / "termination-log"
    message.touch()
    script = "import os, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(600)"
    assert exit_code(script, DDPJOB_TERMINATION_LOG=str(message)) == 137
    assert message.read_text() == "rank 1\nkilled by SIGKILL"


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


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_rank_has_started_ends_with_it(tmp_path, code):
    """Data workers would keep the memory of its GPU and its connections. One that ignores SIGTERM is about to read."""
    script = f"""
import os, signal, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(0, 3)
    open(f"{tmp_path}/{{os.getpid()}}", "w")
    time.sleep(600)
while len(os.listdir("{tmp_path}")) < 2: time.sleep(0.01)
os._exit({code})
"""
    assert exit_code(script) == code
    wait_for("the children to end", lambda: not any(map(is_running, pids_in(tmp_path, 2))), seconds=30)


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


def test_the_launchers_of_several_slurm_tasks_leave_the_port_to_the_variables_that_they_share():
    """A free port would be another one in each task, and the ranks would not meet."""
    given = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "a,b", "SLURM_NTASKS": "2"}
    given |= {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
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
