from pathlib import Path

from support.local_command import run_job

PROGRAM = """
import faulthandler, os, signal, time
faulthandler.register(signal.SIGTERM, chain=True)

def wait_for_a_rank_that_never_comes():
    while True:
        time.sleep(1)

if os.environ["DDPJOB_ATTEMPT"] == "1":
    print('ddpjob-progress {"step": 7}', flush=True)  # from here on it can hang, unlike the second attempt
    wait_for_a_rank_that_never_comes()
"""


def test_a_gang_that_hangs_is_restarted_and_leaves_its_stacks(tmp_path: Path) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(PROGRAM)
    spec = {"command": ["python", str(program)], "deadlines": {"hangSeconds": 2}}

    outcome = run_job(tmp_path, spec)

    assert (outcome.exit_code, outcome.status["attempt"]) == (0, 2)
    assert outcome.status["failure"]["reason"] == "Hung"
    assert "no progress after step 7" in outcome.status["failure"]["message"]
    (log,) = tmp_path.rglob("job-1-0.log")
    assert "wait_for_a_rank_that_never_comes" in log.read_text()
