"""The command that shows that resuming costs no bit, and that it notices where it does."""

import re
import sys
import time

import pytest

from ddpjob_measure import verify_resume
from ddpjob_measure.__main__ import main
from ddpjob_measure.task import MeasureError
from ddpjob_measure.verify_resume import Kill, Run, Trainer, differences, table, verify
from support.programs import PROGRAMS

FAKE = Trainer(arguments=[], world_size=2, command=(sys.executable, str(PROGRAMS / "fake_trainer.py")))


def test_a_real_training_of_two_ranks_is_equal_bit_for_bit(capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    keys = ("recipe=digits", "epochs=8", "globalBatchSize=100")
    # The kill of this seed comes at step 34: the checkpoint of step 15 is complete, since that of step 30 has begun.
    assert (
        main(
            [
                "verify-resume",
                "--kills=1",
                "--no-speed",
                "--seed=13",
                *(part for key in keys for part in ("--set", key)),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    print(printed)
    assert re.search(r"^uninterrupted +1 +120  complete$", printed, re.MULTILINE)
    assert re.search(r"^attempt 1 +1 +\d+  (rank \d|all) killed at step \d+$", printed, re.MULTILINE)
    assert re.search(r"^attempt 2 .*complete$", printed, re.MULTILINE)
    assert re.search(r"^losses of 120 steps \(\d+ trained more than once\): equal bit for bit$", printed, re.MULTILINE)
    assert re.search(r"^weights sha256 [0-9a-f]{64}: equal$", printed, re.MULTILINE)


def test_a_right_trainer_passes():
    runs, found = verify(FAKE, num_kills=3, seed=1, profile="exact")
    assert found == []
    assert [run.end.partition(" at")[0] for run in runs] == ["complete", *3 * ["all killed"], "complete"]
    assert table(runs).count("\n") == 5


@pytest.mark.parametrize(
    ("fault", "difference"),
    [
        ("forgets", r"step \d+: loss 0\.\w+ uninterrupted, 0\.\w+ in attempt 2"),
        ("skips", r"step \d+: loss 0\.\w+ uninterrupted, 0\.\w+ in attempt 2"),
        ("differs", r"weights sha256: \w+ uninterrupted, \w+ resumed"),
    ],
)
def test_a_difference_has_exit_code_1_and_is_named(fault, difference, monkeypatch, capsys):
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setattr(verify_resume, "TRAINER", FAKE.command)
    assert main(["verify-resume", "--kills=1", "--no-speed", "--seed=3"]) == 1
    printed = capsys.readouterr().out
    assert "NOT EQUAL" in printed
    assert re.search(difference, printed)


def test_a_run_is_killed_at_its_step_although_its_output_is_read_late(monkeypatch):
    many = "for n in range(1, 401): print(f'epoch 0 step {n}/400 loss 0.5 data 1.0 ms compute 1.0 ms 1,000 samples/s')"
    read = Run.read

    def read_late(run, line):
        time.sleep(0 if run.losses else 0.5)
        read(run, line)

    monkeypatch.setattr(Run, "read", read_late)
    trainer = Trainer(arguments=[], world_size=1, command=(sys.executable, "-u", "-c", many))
    assert trainer.run("attempt 1", kill=Kill(step=1, victim=0)).end.endswith("killed at step 1")


def test_a_trainer_that_cannot_resume_is_reported_with_its_message(monkeypatch):
    monkeypatch.setenv("FAULT", "raises")
    with pytest.raises(MeasureError, match=r"(?s)attempt 2 was to be complete, but ended with exit code 1:.*cannot"):
        verify(FAKE, num_kills=1, seed=0, profile="exact")


def test_a_trainer_that_never_resumes_proves_nothing(monkeypatch):
    monkeypatch.setenv("FAULT", "starts again")
    with pytest.raises(MeasureError, match="no attempt resumed, each began at step 1"):
        verify(FAKE, num_kills=2, seed=0, profile="exact")


def test_steps_that_no_attempt_took_are_named():
    reference = Run(name="uninterrupted", losses={1: "0.3", 2: "0.2", 3: "0.1"}, weights="abc")
    attempts = [Run(name="attempt 1", losses={1: "0.3"}), Run(name="attempt 2", losses={3: "0.1"}, weights="abc")]
    assert differences(reference, attempts) == ["steps [2]: in no attempt"]


def test_too_few_steps_are_refused():
    with pytest.raises(MeasureError, match="40 steps are too few for 33 kills"):
        verify(FAKE, num_kills=33, seed=0, profile="exact")
