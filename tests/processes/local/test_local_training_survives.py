"""The built-in trainer under a local run: what the gang's restart and the checkpoints promise, on real processes."""

import os
import re
import signal
from pathlib import Path

from local_command import LocalCommand, run_job, write_job
from testbed import wait_for


def weights(output: str) -> str:
    """The hash of the weights that rank 0 prints at its end."""
    (found,) = re.findall(r"weights sha256 ([0-9a-f]{64})", output)
    return str(found)


def rank_process(command: LocalCommand, rank: int) -> int:
    """Process of this rank of a job with one process per pod."""
    (pid,) = (
        pid
        for pid in command.programs()
        if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    )
    return pid


def test_a_killed_rank_causes_a_restart_and_the_result_has_the_same_bits(tmp_path: Path) -> None:
    training = {"nodes": 2, "trainer": {"recipe": "digits", "epochs": 3}}
    undisturbed = run_job(tmp_path, training, timeout_seconds=180)

    claim = {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}}
    file = write_job(tmp_path, {**training, "checkpoint": claim}, name="killed")
    with LocalCommand(file, tmp_path) as command:
        wait_for(
            "the second epoch of rank 0",
            lambda: any("epoch 1" in log.read_text() for log in tmp_path.glob(".ddpjob/runs/*/logs/killed-1-0.log")),
            seconds=120,
        )
        os.kill(rank_process(command, 1), signal.SIGKILL)
        killed = command.outcome(180)

    assert killed.exit_code == 0
    assert (killed.status["attempt"], killed.status["restarts"]["counted"]) == (2, 1)
    assert (killed.status["failure"]["rank"], killed.status["failure"]["signal"]) == (1, signal.SIGKILL)
    assert any(re.match(r"resumed from step \d+", line) for line in killed.lines_of(0))
    assert weights(killed.output) == weights(undisturbed.output)
