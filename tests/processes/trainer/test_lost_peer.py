import re

from ddpjob_ranks import contract
from support.standstill import two_ranks


def test_a_rank_that_skips_a_collective_is_named_although_it_is_ahead(tmp_path):
    with two_ranks(tmp_path, fault="skip", faulty_rank=1) as run:
        assert run.wait() == [contract.EXIT_HUNG, contract.EXIT_HUNG]
    for message in (run.message(0), run.message(1)):
        # How many steps rank 1 takes before it waits for rank 0 depends on how fast steps are.
        ahead = r"\nrank 1 \(host .*\) skipped a collective: in the agreement between steps after (\d+) steps"
        assert int(re.findall(ahead, message)[0]) > 7, message
        assert message.endswith("; rank 0 waits in backward or all-reduce after 7 steps")


def test_a_rank_that_exits_is_named_by_the_others(tmp_path):
    with two_ranks(tmp_path, fault="exit", faulty_rank=1) as run:
        assert run.wait() == [contract.EXIT_PEER_LOST, 0]
    assert run.message(0).startswith("rank 0 lost a peer\nrank 1 (host ")
    assert ") does not respond (stopped, blocked or gone), last seen in " in run.message(0)
