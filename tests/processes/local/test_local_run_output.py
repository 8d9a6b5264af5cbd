"""What `ddpjob run --local` prints in a life with a restart, as a golden file; times and directories are replaced."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import golden
from support.local_command import DEADLINE_SECONDS, write_job
from support.terminal import Terminal

FAILS_ONCE = """
import os
print("attempt", os.environ["DDPJOB_ATTEMPT"], flush=True)
if os.environ["DDPJOB_ATTEMPT"] == "1":
    raise ValueError("label 12 is out of range")
print('ddpjob-progress {"step": 100, "totalSteps": 100, "loss": 0.25}', flush=True)
"""
VOLATILE = {
    r"\d{8}-\d{6}": "<time>",
    r"node [\w.-]+\)": "node <this machine>)",
    r"\b(\d+m)?\d+s\b": "<seconds>",
    r"goodput .*": "goodput   <times>",
    r"(/[\w.-]+)+/train.py": "<directory>/train.py",
}


def test_a_program_that_fails_once_is_restarted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILS_ONCE)
    file = write_job(tmp_path, {"command": ["python", "train.py"]}, "net")
    command = [sys.executable, "-m", "ddpjob_cli", "run", "--local", file.name]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    text = ended.stdout
    for pattern, stands_for in VOLATILE.items():
        text = re.sub(pattern, stands_for, text)
    golden.check(Path(__file__).parent / "output" / "restarts.txt", f"$ ddpjob run --local net.yaml\n{text}")


@pytest.mark.parametrize("output", [">/dev/full 2>&1", "2>&1 | true", ">&- 2>&-"])
def test_what_happens_to_the_output_ends_no_training(tmp_path: Path, output: str) -> None:
    steps = "for step in range(20): print(step, flush=True)\nopen('done', 'w')"  # `true` has ended long before Python begins
    (tmp_path / "train.py").write_text(steps)
    command = f"{sys.executable} -m ddpjob_cli run --local --nodes 1 -- python train.py"
    subprocess.run(["sh", "-c", f"{{ {command}; echo $? >code; }} {output}"], cwd=tmp_path, check=True, timeout=300)
    assert (tmp_path / "done").exists()
    assert (tmp_path / "code").read_text() == "0\n"


def test_a_terminal_that_goes_away_ends_no_training(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    wait = "import pathlib\nprint('ready', flush=True)\nopen('go').read()\nprint('done')\npathlib.Path('done').touch()"
    (tmp_path / "train.py").write_text(wait)
    terminal = Terminal("run", "--local", "--nodes", "1", "--", "python", "train.py", folder=tmp_path)
    with terminal:
        terminal.read_until("ready")
        terminal.hang_up()
        (tmp_path / "go").write_text("")  # opened by the program, too
        assert terminal.process.wait(timeout=300) == 0
    assert (tmp_path / "done").exists()
