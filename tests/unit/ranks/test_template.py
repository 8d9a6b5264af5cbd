"""What ranks are forked from."""

import os
import signal
import subprocess
import sys

import pytest

from ddpjob_ranks.launch.supervisor import MODULES

FORKS = """
import os, sys
from ddpjob_ranks.launch.template import Template
template = Template(sys.argv[2:] or ["numpy.random"], os.environ, lambda: None, "")
for _ in range(2):
    os.waitpid(template.fork([sys.argv[1]], os.environ, []), 0)
"""


def test_forked_ranks_draw_different_numbers(tmp_path):
    """As processes do that import NumPy themselves."""
    script = tmp_path / "script.py"
    script.write_text("import random, numpy\nprint(random.random(), numpy.random.rand())")
    done = subprocess.run([sys.executable, "-c", FORKS, script], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 4, done.stdout + done.stderr


COUNTS_THREADS = """
import os
os.register_at_fork(after_in_parent=lambda: os.write(1, b"%d\\n" % len(os.listdir("/proc/self/task"))))
"""
MULTIPLIES = """
import numpy, torch
matrix = numpy.random.default_rng(0).random((300, 300))
expected = numpy.einsum("ij,jk->ik", matrix, matrix)  # without BLAS
for product in (matrix @ matrix, torch.from_numpy(matrix) @ torch.from_numpy(matrix)):
    print("right" if numpy.allclose(product, expected) else "wrong")
"""


def test_ranks_are_forked_from_a_process_of_one_thread_and_compute_with_several(tmp_path):
    """Threads that the imports have started, as OpenBLAS does where there are several cores, have ended by then."""
    (tmp_path / "counts_threads.py").write_text(COUNTS_THREADS)
    (script := tmp_path / "script.py").write_text(MULTIPLIES)
    environ = {**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", FORKS, script, *MODULES, "ddpjob_trainer.worker", "counts_threads"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    forks = 2 * 2  # each rank by way of a parent that ends
    assert sorted(done.stdout.split()) == ["1"] * forks + ["right"] * 4, done.stdout + done.stderr


def test_an_environment_may_be_larger_than_a_message_over_a_socket(tmp_path):
    """As that of a pod with the variables of a thousand Services."""
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(sum(len(value) for name, value in os.environ.items() if 'LARGE_' in name))")
    environ = {**os.environ, **{f"LARGE_{number}": "x" * 100_000 for number in range(10)}}
    command = [sys.executable, "-c", FORKS, script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "1000000\n" * 2, done.stderr


SIGNALS_COME_FIRST = """
import os, sys
from ddpjob_ranks.launch.launcher import FORWARDED
from ddpjob_ranks.launch.template import Template
template = Template([], os.environ, lambda: None, "")
template.wait_until_ready()
for number in FORWARDED:
    template._process.send_signal(number)
os.waitpid(template.fork([sys.argv[1]], os.environ, []), 0)
"""
READS_HANDLERS = """
import signal
defaults = {signal.SIG_DFL, signal.default_int_handler}
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
all_default = all(signal.getsignal(number) in defaults for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ})
print(all_default and not blocked)
"""


def test_signals_that_all_processes_get_do_not_end_it_and_forked_ranks_can_handle_them(tmp_path):
    """Slurm sends each signal to all processes of a job."""
    script = tmp_path / "script.py"
    script.write_text(READS_HANDLERS)
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS_COME_FIRST, script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr


CANNOT_FORK = """
import os
fork, template = os.fork, os.getpid()
def fork_once():
    if os.getpid() != template:
        raise OSError("too many processes")
    return fork()
os.fork = fork_once
"""


FORK = """
import os
from ddpjob_ranks.launch.template import Template, TemplateError
try:
    Template(["cannot_fork"], os.environ, lambda: None, "").fork(["script.py"], os.environ, [])
except TemplateError:
    print("refused")
"""


def test_a_rank_that_cannot_be_forked_is_an_error_and_no_wait(tmp_path):
    """As where the pod may run no more processes."""
    (tmp_path / "cannot_fork.py").write_text(CANNOT_FORK)
    environ = {**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", FORK], env=environ, capture_output=True, text=True, timeout=120)
    assert (done.stdout, "too many processes" in done.stderr) == ("refused\n", True), done.stderr


BEGINS_LATE = """
import os, signal, sys, time
from ddpjob_ranks.launch import launcher
from ddpjob_ranks.launch.template import Template
with launcher.signals_blocked() as mask:
    os.kill(os.getpid(), int(sys.argv[1]))
    template = Template(["imports_slowly"], os.environ, launcher.dies_with_this_process(mask), "")
    print(os.waitpid(template.fork(["ends.py"], os.environ, []), 0)[1], sorted(signal.sigpending() - {signal.SIGCHLD}))
"""


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_a_signal_that_is_for_the_ranks_waits_until_they_are_there(tmp_path, sent):
    """While the process that they are forked from imports torch, which takes several looks at the signals."""
    (tmp_path / "imports_slowly.py").write_text("import time\ntime.sleep(1)")
    (tmp_path / "ends.py").touch()
    environ = {**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", BEGINS_LATE, str(int(sent))]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"0 [{sent!r}]\n", done.stdout + done.stderr


ASKED_TO_STOP_IN_A_FORK = """
import os, signal
from ddpjob_ranks.launch import launcher
from ddpjob_ranks.launch.template import Template
with launcher.signals_blocked() as mask:
    template = Template(["forks_slowly"], os.environ, launcher.dies_with_this_process(mask), "")
    template.wait_until_ready()
    os.kill(os.getpid(), signal.SIGTERM)
    print(os.waitpid(template.fork(["ends.py"], os.environ, []), 0)[1])
"""


def test_a_request_to_stop_waits_for_the_rank_that_is_being_forked(tmp_path):
    """That rank has a state in memory to save, after a restart in place."""
    (tmp_path / "forks_slowly.py").write_text("import os, time\nos.register_at_fork(before=lambda: time.sleep(1))")
    (tmp_path / "ends.py").touch()
    environ = {**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", ASKED_TO_STOP_IN_A_FORK]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stdout + done.stderr


ADOPTED_BY_ANOTHER = """
import os
from ddpjob_ranks import prctl
from ddpjob_ranks.launch import template
prctl.adopt_orphans()
if os.fork() == 0:
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    template._become_child_of(2**22, parent)
os.wait()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_rank_whose_launcher_has_ended_before_it_could_adopt_it_ends():
    """Under another reaper of orphans than process 1, such as that of a login session or of Slurm."""
    command = [sys.executable, "-c", ADOPTED_BY_ANOTHER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "137\n", done.stderr


@pytest.mark.parametrize("code", ["None", "3", "'a text'", "ValueError('an error')"])
def test_a_rank_that_exits_ends_as_python_does(code):
    """Scripts also pass an error to sys.exit, which Python prints."""
    ends = [f"import sys; sys.exit({code})"]
    ends.append(f"import sys; from ddpjob_ranks.launch import template; template._end_after(lambda: sys.exit({code}))")
    plain, forked = (
        subprocess.run([sys.executable, "-c", end], capture_output=True, text=True, timeout=120) for end in ends
    )
    assert (forked.returncode, forked.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.parametrize("is_safe", ["", "1"])
def test_a_forked_script_imports_from_where_python_does(tmp_path, is_safe):
    """With PYTHONSAFEPATH no directory of the script comes first."""
    (script := tmp_path / "script.py").write_text("import sys\nprint(sys.path)")
    forked = f"import os; from ddpjob_ranks.launch import template; template._run(['{script}'], dict(os.environ), [])"
    environ = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONSAFEPATH": is_safe}
    printed = [
        subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=120).stdout
        for arguments in ([script], ["-c", forked])
    ]
    assert printed[0] == printed[1] != ""
