import sys
from pathlib import Path

import pytest

from ddpjob_ranks import contract
from training_runs import finished, ranks_by_hand, started

PROGRAM = (sys.executable, str(Path(__file__).parent / "faulty_rank.py"))
FAULT = {"FAULT": "raise", "FAULTY_RANK": "1", "FAULT_STEP": "5"}
KEYS = ("epochs=2",)


def test_an_exception_of_one_rank_is_the_exit_code_and_the_message_of_its_pod(tmp_path):
    run = finished(tmp_path, *KEYS, ranks=2, command=PROGRAM, environ=FAULT, expected=contract.EXIT_PROGRAM_ERROR)
    lines = run.message.splitlines()
    assert (lines[0], lines[-1]) == ("rank 1", "LookupError: the disk of sample 7 is on fire")
    assert len(run.message.encode()) <= contract.TERMINATION_MESSAGE_MAX_BYTES


def test_the_other_pods_say_that_they_only_lost_a_peer(tmp_path):
    variables = [{**FAULT, **rank} for rank in ranks_by_hand(2)]
    with (
        started(tmp_path / "0", *KEYS, ranks=0, command=PROGRAM, environ=variables[0]) as rank_0,
        started(tmp_path / "1", *KEYS, ranks=0, command=PROGRAM, environ=variables[1]) as rank_1,
    ):
        assert (rank_0.wait(), rank_1.wait()) == (contract.EXIT_PEER_LOST, contract.EXIT_PROGRAM_ERROR)
    assert rank_0.message.splitlines()[0] == "rank 0 lost a peer"
    assert rank_1.message.endswith("LookupError: the disk of sample 7 is on fire")


@pytest.mark.parametrize("ranks", [1, 2])
def test_missing_data_are_told_with_the_expected_layout(tmp_path, ranks):
    run = finished(
        tmp_path,
        "recipe=resnet18-cifar10",
        ranks=ranks,
        environ={contract.DDPJOB_DATA_DIR: str(tmp_path / "nothing")},
        expected=contract.EXIT_BAD_CONFIG,
    )
    assert "nothing/train; expected train/<class>/*.jpg" in run.message
    assert "Traceback" not in run.text
