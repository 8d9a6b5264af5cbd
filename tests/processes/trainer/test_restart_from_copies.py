"""Ranks that copy their state into memory while they train, as those on GPUs do: a restart in place repeats the steps since then.

On CPUs, where the copy is made by the same code, without a transfer.
"""

import json
import os
import re
import signal
import sys

from test_restart_in_place import DIGITS, IN_PLACE, LAUNCH, RESTART, SCRIPT, gates, pid_of_rank
from test_session import assert_same, saved

from ddpjob_ranks import contract
from support.programs import gated_rank, rank_with_copies
from support.training_runs import Run, finished, job, started

RESUMED = r"resumed from step (\d+) in memory; later steps, if there were any, are repeated"


def resumed_steps(run: Run) -> list[int]:
    return [int(step) for step in re.findall(RESUMED, run.text)]


def progress_of(line: str) -> dict[str, str]:
    """The fields of a progress line that reports a restart in place; nothing of any other."""
    found = json.loads(line.removeprefix(contract.PROGRESS_PREFIX)) if line.startswith(contract.PROGRESS_PREFIX) else {}
    return found if "inPlaceCause" in found else {}


def test_killed_ranks_continue_from_the_newest_copy_with_the_same_bits(tmp_path):
    """Both ranks in turn, and both at once, without any checkpoint."""
    undisturbed = finished(tmp_path / "undisturbed", *DIGITS, ranks=2)
    command = (sys.executable, "-m", "ddpjob.launch", rank_with_copies.FILE, gated_rank.FILE)
    environ = IN_PLACE | gates(tmp_path, 22, 62, 102)
    with started(tmp_path, *DIGITS, ranks=2, command=command, environ=environ) as run:
        for ranks, step in (((1,), 22), ((0,), 62), ((0, 1), 102)):
            run.wait_for(f"gate at step {step}")
            for pid in [pid_of_rank(run, rank) for rank in ranks]:
                os.kill(pid, signal.SIGKILL)
        assert run.wait() == 0, run.text
    steps = resumed_steps(run)
    assert len(steps) == run.text.count(RESTART) == 3, run.text
    assert all(before <= step <= gate for before, step, gate in zip((1, 22, 62), steps, (22, 62, 102), strict=True))
    causes = [found["inPlaceCause"] for line in run.text.splitlines() if (found := progress_of(line))]
    assert f"rank 1 was killed by SIGKILL, continued from step {steps[0]}" in causes, "as the operator reads it"
    assert all(re.fullmatch(contract.IN_PLACE_CAUSE_PATTERN, cause) for cause in causes)
    assert (run.weights, run.losses) == (undisturbed.weights, undisturbed.losses)


def test_a_script_with_a_session_has_the_same_bits_after_kills_at_any_moment(tmp_path):
    """BatchNorm, dropout, and all generators of each rank, which belong to the step of the copy."""
    finished(tmp_path / "whole", ranks=0, command=LAUNCH, environ=job(tmp_path / "whole"))
    kills = {"FAULT": "killed soon,killed soon,killed soon,killed soon,", "FAULT_STEP": "11", "FAULTY_RANKS": "1,0,0,1"}
    environ = job(tmp_path) | IN_PLACE | kills | {"CHECKPOINT_EVERY": "60"}
    run = finished(tmp_path, ranks=0, command=(*LAUNCH[:-1], rank_with_copies.FILE, SCRIPT), environ=environ)
    assert len(resumed_steps(run)) == run.text.count(RESTART) == 4, run.text
    assert_same(saved(tmp_path), saved(tmp_path / "whole"))
