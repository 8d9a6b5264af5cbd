from pathlib import Path

import pytest

from ddpjob_cli.__main__ import main
from support.local_command import run_job

FAIL_ON_RANK_1 = """
import os, pathlib, sys, time
rank, attempt = os.environ["RANK"], os.environ["DDPJOB_ATTEMPT"]
print("attempt", attempt, flush=True)
if rank == "1" and int(attempt) <= int(sys.argv[1]):
    raise ValueError("the sample is\\033[31m torn")
if int(attempt) <= int(sys.argv[1]):
    time.sleep(600)  # waits for rank 1, as in a collective
"""


def spec(tmp_path: Path, *, failing_attempts: int, max_restarts: int) -> dict[str, object]:
    (tmp_path / "train.py").write_text(FAIL_ON_RANK_1)
    command = ["python", "train.py", str(failing_attempts)]
    return {"nodes": 2, "command": command, "restart": {"maxRestarts": max_restarts}}


def test_a_failing_rank_restarts_the_whole_gang(tmp_path: Path) -> None:
    outcome = run_job(tmp_path, spec(tmp_path, failing_attempts=1, max_restarts=3))
    assert outcome.exit_code == 0
    # On a busy machine rank 0 is stopped before it says anything in the first attempt.
    assert outcome.lines_of(0)[-1] == "attempt 2"
    assert [line for line in outcome.lines_of(1) if line.startswith("attempt")] == ["attempt 1", "attempt 2"]
    assert outcome.status["attempt"] == 2
    assert outcome.status["restarts"]["counted"] == 1


def test_a_job_without_restarts_left_fails_and_names_rank_and_exception(tmp_path: Path) -> None:
    outcome = run_job(tmp_path, spec(tmp_path, failing_attempts=9, max_restarts=2))
    assert outcome.exit_code == 1
    assert outcome.status["phase"] == "Failed"
    failure = outcome.status["failure"]
    assert (failure["rank"], failure["exitCode"], failure["attempt"]) == (1, 1, 3)
    assert "the job avoids" not in outcome.output, "this machine is the only node"
    assert "ValueError: the sample is" in failure["message"]
    assert "torn" in outcome.output
    assert "\x1b" not in outcome.output, "no control sequence of a program is printed"
    assert "failed after" in outcome.output.splitlines()[-1]
    assert "Rank 1" in outcome.output.splitlines()[-1]


def test_commands_show_a_run_that_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_job(tmp_path, spec(tmp_path, failing_attempts=9, max_restarts=1))
    (folder,) = map(str, tmp_path.glob(".ddpjob/runs/*"))
    page = tmp_path / "report.html"

    assert main(["explain", folder]) == main(["status", folder]) == main(["report", folder, "-o", str(page)]) == 0
    explained, _, status = capsys.readouterr().out.partition("\nJob ")
    assert "default/job is Failed (ProgramError): Rank 1 (pod job-2-1, node " in explained
    assert explained.splitlines()[1].count("in attempt 2") == 1
    assert "ValueError: the sample is" in explained
    assert f"ddpjob logs {folder} --failed" in explained
    assert "job-2-1" in status
    assert "ValueError: the sample is" in page.read_text()

    newest = str(tmp_path / ".ddpjob/runs/job")
    assert main(["logs", newest, "--failed", "--grep", "attempt"]) == 0
    assert capsys.readouterr().out == "[r01] attempt 2\n"
    assert main(["logs", folder, "--attempt", "all", "--rank", "1", "--grep", "attempt"]) == 0
    assert capsys.readouterr().out == "[r01] attempt 1\n[r01] attempt 2\n"


WRITE_A_MESSAGE = "import os; open(os.environ['DDPJOB_TERMINATION_LOG'], 'w').write('RuntimeError: boom'); os._exit(3)"


@pytest.mark.parametrize(
    ("command", "failure", "printed"),
    [
        (
            ["no-such-program"],
            {"exitCode": 128, "reason": "BadCommand"},
            "cannot start 'no-such-program': no such file",
        ),
        (["python", "-c", "import os; os.kill(os.getpid(), 9)"], {"signal": 9, "exitCode": 137}, "signal 9 (SIGKILL)"),
        (["python", "-c", WRITE_A_MESSAGE], {"exitCode": 3, "message": "RuntimeError: boom"}, "RuntimeError: boom"),
    ],
)
def test_how_a_program_ended_is_in_the_status_and_printed(tmp_path: Path, command, failure, printed) -> None:
    outcome = run_job(tmp_path, {"command": command, "restart": {"maxRestarts": 0}})
    assert outcome.exit_code == 1
    assert failure.items() <= outcome.status["failure"].items()
    assert printed in outcome.output
