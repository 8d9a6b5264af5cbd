import pickle

import pytest

from ddpjob_ranks import contract
from support.standstill import two_ranks

STEP_7 = "after 7 steps"


def test_a_rank_in_an_endless_loop_is_named_and_all_ranks_print_their_stacks(tmp_path):
    with two_ranks(tmp_path, fault="loop", faulty_rank=1) as run:
        assert run.wait() == [contract.EXIT_HUNG, contract.EXIT_HUNG]
    for rank in range(2):
        assert run.message(rank).startswith(f"rank {rank}\nrank 1 (host ")
        assert f" is late: in data {STEP_7}; rank 0 waits in backward or all-reduce {STEP_7}" in run.message(rank)
    assert "in loop_for_ever\n" in run.text(1)
    assert "torch.autograd.backward(" in run.text(0)
    assert (run.text(0) + run.text(1)).count("ddpjob watchdog: ") == 1
    records = [pickle.loads((tmp_path / f"flight-recorder-gloo-{rank}").read_bytes()) for rank in range(2)]  # noqa: S301
    assert len(records[0]["entries"]) > len(records[1]["entries"]) > 0


@pytest.mark.parametrize(("check", "phase"), [("check_group", "setup"), ("check_data", "load")])
def test_a_rank_that_hangs_before_a_collective_of_the_set_up_is_named(tmp_path, check, phase):
    with two_ranks(tmp_path, fault="loop", faulty_rank=1, check=check) as run:
        assert run.wait() == [contract.EXIT_HUNG, contract.EXIT_HUNG]
    assert run.message(0).startswith("rank 0\nrank 1 (host ")
    assert f" is late: in {phase} after 0 steps; rank 0 waits in {phase} after 0 steps" in run.message(0)


def test_a_rank_that_stops_while_process_groups_are_created_is_named(tmp_path):
    with two_ranks(tmp_path, fault="stop", faulty_rank=1, check="new_group") as run:
        assert run.exit_code(0) == contract.EXIT_HUNG
    assert run.message(0).startswith("rank 0\nrank 1 (host ")
    assert run.message(0).endswith("last seen in connect after 0 steps; rank 0 waits in connect after 0 steps")


@pytest.mark.parametrize("faulty", [0, 1])
def test_a_rank_that_stops_after_the_last_step_is_named(tmp_path, faulty):
    with two_ranks(tmp_path, "epochs=1", fault="stop", faulty_rank=faulty, check="leave") as run:
        other = 1 - faulty
        assert run.exit_code(other) == contract.EXIT_HUNG
    assert f"rank {faulty} (host " in run.message(other)
    assert ") does not respond" in run.message(other)
    assert f"rank {other} waits in shutdown after 23 steps" in run.message(other)


def test_a_stopped_rank_0_is_named_although_it_serves_the_store(tmp_path):
    with two_ranks(tmp_path, fault="stop", faulty_rank=0) as run:
        assert run.exit_code(1) == contract.EXIT_HUNG
    assert run.message(1).startswith("rank 1\nrank 0 (host 127.0.0.1) does not respond")
