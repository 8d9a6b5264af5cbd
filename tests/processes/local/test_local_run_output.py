"""What `ddpjob run --local` prints in a life with a restart, as a golden file; times and directories are replaced."""

import re
import subprocess
import sys
from pathlib import Path

from support import golden
from support.local_command import DEADLINE_SECONDS, write_job

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
