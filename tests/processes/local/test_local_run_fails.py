from pathlib import Path

from local_command import run_job

FAIL_ON_RANK_1 = """
import os, pathlib, sys, time
rank, attempt = os.environ["RANK"], os.environ["DDPJOB_ATTEMPT"]
print("attempt", attempt, flush=True)
if rank == "1" and int(attempt) <= int(sys.argv[1]):
    raise ValueError("the sample is\\033[31m torn")
if int(attempt) <= int(sys.argv[1]):
    time.sleep(60)  # waits for rank 1, as in a collective
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
    outcome = run_job(tmp_path, spec(tmp_path, failing_attempts=9, max_restarts=1))
    assert outcome.exit_code == 1
    assert outcome.status["phase"] == "Failed"
    failure = outcome.status["failure"]
    assert (failure["rank"], failure["exitCode"], failure["attempt"]) == (1, 1, 2)
    assert "ValueError: the sample is" in failure["message"]
    assert "failed after" in outcome.output.splitlines()[-1]
    assert "Rank 1" in outcome.output.splitlines()[-1]


def test_no_control_sequence_of_a_program_reaches_the_output(tmp_path: Path) -> None:
    outcome = run_job(tmp_path, spec(tmp_path, failing_attempts=9, max_restarts=0))
    assert "torn" in outcome.output
    assert "\x1b" not in outcome.output


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    outcome = run_job(tmp_path, {"command": ["no-such-program"], "restart": {"maxRestarts": 0}})
    assert outcome.exit_code == 1
    assert outcome.status["failure"]["exitCode"] == 128
    assert "cannot start 'no-such-program': No such file or directory" in outcome.output


def test_a_rank_killed_by_a_signal_shows_the_signal(tmp_path: Path) -> None:
    kill_itself = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    outcome = run_job(tmp_path, {"command": ["python", "-c", kill_itself], "restart": {"maxRestarts": 0}})
    assert outcome.status["failure"]["signal"] == 9
    assert outcome.status["failure"]["exitCode"] == 137


def test_the_termination_message_comes_from_the_file_of_the_contract(tmp_path: Path) -> None:
    write = (
        "import os; open(os.environ['DDPJOB_TERMINATION_LOG'], 'w').write('RuntimeError: my last words'); os._exit(3)"
    )
    outcome = run_job(tmp_path, {"command": ["python", "-c", write], "restart": {"maxRestarts": 0}})
    assert outcome.status["failure"]["exitCode"] == 3
    assert "my last words" in outcome.status["failure"]["message"]
