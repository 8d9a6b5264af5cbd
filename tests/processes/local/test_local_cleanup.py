"""Whatever ends the command, no process of its run is left."""

import os
import signal
import textwrap
from pathlib import Path

import pytest

from support.local_command import DEADLINE_SECONDS, LocalCommand, write_job
from testbed import wait_for

# Each rank starts a child that leaves its session and ignores SIGTERM, and a grandchild whose parent is gone.
FAMILY = textwrap.dedent(
    """
    import os, signal, subprocess, sys, time
    def saved(*_):
        print("saved", flush=True)
        time.sleep(float(sys.argv[1]))
        sys.exit(0)
    signal.signal(signal.SIGTERM, saved)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", orphan])
    print("ready", flush=True)
    time.sleep(600)
    """
)
NODES = 2
PROGRAMS = NODES * 3  # the rank, its child, its orphaned grandchild


def started(folder: Path, *, seconds_to_save: float = 0) -> LocalCommand:
    """A run whose ranks and their families are all up."""
    (folder / "family.py").write_text(FAMILY)
    # Longer than any wait of the tests: what is killed at once is not killed by the end of its grace period.
    template = {"spec": {"terminationGracePeriodSeconds": 600}}
    spec = {"nodes": NODES, "command": ["python", "family.py", str(seconds_to_save)], "template": template}
    command = LocalCommand(write_job(folder, spec), folder)
    wait_for("all ranks to be ready", lambda: _lines_in_logs(folder).count("ready") == NODES, seconds=DEADLINE_SECONDS)
    assert len(command.programs()) == PROGRAMS
    return command


def _lines_in_logs(folder: Path) -> list[str]:
    return [line for log in folder.glob(".ddpjob/runs/*/logs/*.log") for line in log.read_text().splitlines()]


@pytest.mark.parametrize(("sent", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_ranks_save_and_stops_everything(tmp_path: Path, sent: signal.Signals, exit_code: int) -> None:
    with started(tmp_path) as command:
        command.process.send_signal(sent)
        outcome = command.outcome()
        assert command.processes() == []
    assert outcome.exit_code == exit_code
    assert outcome.lines_of(0) == ["ready", "saved"]
    assert outcome.lines_of(1) == ["ready", "saved"]
    assert str(tmp_path) in outcome.output.splitlines()[-1]


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    with started(tmp_path, seconds_to_save=600) as command:
        command.process.send_signal(signal.SIGINT)
        wait_for(
            "all ranks to get SIGTERM",
            lambda: _lines_in_logs(tmp_path).count("saved") == NODES,
            seconds=DEADLINE_SECONDS,
        )
        command.process.send_signal(signal.SIGINT)
        outcome = command.outcome()
        assert command.processes() == []
    assert outcome.exit_code == 130


def test_sigkill_of_the_command_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as command:
        command.process.kill()
        command.process.wait()
        wait_for("every process of the run to end", lambda: not command.processes(), seconds=DEADLINE_SECONDS)


def test_sigkill_of_the_commands_process_group_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as command:
        os.killpg(command.process.pid, signal.SIGKILL)
        command.process.wait()
        wait_for("every process of the run to end", lambda: not command.processes(), seconds=DEADLINE_SECONDS)


def test_a_run_whose_reader_has_gone_ends_with_its_program_and_leaves_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    count = f"print(0, flush=True)\nopen({str(tmp_path / 'go')!r}).read()\nfor n in range(200): print(n, flush=True)\nopen('counted', 'w')"
    with LocalCommand(write_job(tmp_path, {"command": ["python", "-c", count]}), tmp_path) as command:
        assert command.process.stdout is not None
        command.process.stdout.readline()
        command.process.stdout.close()
        (tmp_path / "go").write_text("")  # opened by the program, too
        assert command.process.wait(timeout=DEADLINE_SECONDS) == 0
        wait_for("every process of the run to end", lambda: not command.processes(), seconds=DEADLINE_SECONDS)
    assert list(tmp_path.rglob("counted")), "the program was ended before"


def test_the_program_of_a_killed_reaper_is_killed(tmp_path: Path) -> None:
    spec = {"command": ["sleep", "600"], "restart": {"maxRestarts": 0}}
    with LocalCommand(write_job(tmp_path, spec), tmp_path) as command:

        def reaper_of_a_running_program() -> set[int]:
            """A process that is about to become the reaper, or the program, still looks like the command or the reaper."""
            processes, programs = command.processes(), command.programs()
            return set(processes) - set(programs) if (len(processes), len(programs)) == (2, 1) else set()

        (reaper,) = wait_for("the program to run", reaper_of_a_running_program, seconds=DEADLINE_SECONDS)
        os.kill(reaper, signal.SIGKILL)
        outcome = command.outcome()
        assert command.processes() == []
    assert outcome.status["failure"]["signal"] == signal.SIGKILL


def test_processes_that_a_program_started_end_with_it(tmp_path: Path) -> None:
    start_and_end = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    spec = {"command": ["python", "-c", start_and_end]}
    with LocalCommand(write_job(tmp_path, spec), tmp_path) as command:
        assert command.outcome().exit_code == 0
        assert command.processes() == []
