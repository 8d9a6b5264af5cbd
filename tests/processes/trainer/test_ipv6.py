"""A training whose rank 0 has an IPv6 address."""

import socket

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.launch.network_interface import interface_towards
from support.forked_ranks import finished
from support.training_runs import ranks_by_hand

ADDRESS = "::1"


def has_ipv6() -> bool:
    """Whether this machine has the loopback address of IPv6."""
    try:
        socket.create_server((ADDRESS, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_ranks_meet_at_an_ipv6_address_and_its_interface_is_found(tmp_path):
    places = [{**place, contract.MASTER_ADDR: ADDRESS} for place in ranks_by_hand(2)]
    run = finished(tmp_path, "epochs=1", "logEverySteps=1", ranks=places)
    assert run.losses
    assert interface_towards(ADDRESS, 29500) == "lo"
