from ddpjob_ranks import contract
from standstill import two_ranks


def test_a_rank_that_skips_a_collective_is_named_although_it_is_ahead(tmp_path):
    with two_ranks(tmp_path, fault="skip", faulty_rank=1) as (rank_0, rank_1):
        assert (rank_0.wait(), rank_1.wait()) == (contract.EXIT_HUNG, contract.EXIT_HUNG)
    for run in (rank_0, rank_1):
        assert "\nrank 1 (host " in run.message
        assert ") skipped a collective: in the agreement between steps after 9 steps" in run.message
        assert run.message.endswith("; rank 0 waits in backward or all-reduce after 7 steps")


def test_a_rank_that_exits_is_named_by_those_that_lose_it(tmp_path):
    with two_ranks(tmp_path, fault="exit", faulty_rank=1) as (rank_0, rank_1):
        assert (rank_0.wait(), rank_1.wait()) == (contract.EXIT_PEER_LOST, 0)
    assert rank_0.message.startswith("rank 0 lost a peer\nrank 1 (host ")
    assert ") does not answer (stopped, blocked or gone), last seen in " in rank_0.message


def test_the_exception_of_a_rank_is_told_by_those_that_lose_it(tmp_path):
    with two_ranks(tmp_path, fault="raise", faulty_rank=1) as (rank_0, rank_1):
        assert (rank_0.wait(), rank_1.wait()) == (contract.EXIT_PEER_LOST, contract.EXIT_PROGRAM_ERROR)
    assert rank_0.message == "rank 0 lost a peer\nrank 1 ended: LookupError: the disk of sample 7 is on fire"
