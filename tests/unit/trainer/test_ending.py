"""The exit code of a rank that ends by an exception."""

import os
from typing import Any

import pytest

from ddpjob_ranks import contract, generation
from ddpjob_ranks.errors import ConfigError, ShortageError
from ddpjob_ranks.launch.preflight import RefusedError
from ddpjob_session import ending
from ddpjob_session.checkpoints.storage import UnavailableError
from ddpjob_trainer.loop import DivergedError
from support.fakes import fake
from support.workers import worker

GONE = "rank 1 ended: OSError: the disk of rank 1 failed"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("config: epochs is 0"), contract.EXIT_BAD_CONFIG, "rank 0\nconfig: epochs is 0"),
        # Another attempt can succeed once somebody has freed space, so the operator counts it as a failed program.
        (ShortageError("preflight: 0 MiB free"), contract.EXIT_PROGRAM_ERROR, "rank 0\npreflight: 0 MiB free"),
        (UnavailableError(5, "s3://b: no answer"), contract.EXIT_PROGRAM_ERROR, "rank 0\ns3://b: no answer"),
        # The sum that a GPU was aborted in has any value.
        (DivergedError("the loss is nan"), contract.EXIT_PEER_LOST, f"rank 0 lost a peer\n{GONE}"),
    ],
)
def test_a_rank_ends_with_the_cause_of_its_failure(error, code, text, monkeypatch, tmp_path) -> None:
    message = tmp_path / "termination"
    message.touch()
    monkeypatch.setenv(contract.DDPJOB_TERMINATION_LOG, str(message))
    watchdog = fake(aborted_collectives=True, report_failure=lambda _: None, find_lost_rank=lambda: GONE)
    codes = []

    def exits(code: int) -> None:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", exits)
    with pytest.raises(SystemExit):
        ending.fail(error, worker(), watchdog)

    assert codes == [code]
    assert message.read_text() == text


@pytest.mark.parametrize(
    ("number", "code"),
    [(1, contract.EXIT_BAD_CONFIG), (2, contract.EXIT_PROGRAM_ERROR), (None, contract.EXIT_BAD_CONFIG)],
)
def test_ranks_that_have_trained_together_do_not_end_the_job_because_a_replaced_pod_differs(number, code, monkeypatch):
    """The tag of the image has moved since the others started: all pods of another attempt run the same again."""
    memory: dict[str, Any] = {"pipe": -1, "state_memory": -1, "own_memory": -1, "stores": -1}
    current = None if number is None else generation.Generation(number=number, **memory)
    monkeypatch.setattr(generation, "current", lambda _: current)
    assert ending.exit_code_of(RefusedError("preflight: code differs")) == code
    assert ending.exit_code_of(ConfigError("config: epochs is 0")) == contract.EXIT_BAD_CONFIG
