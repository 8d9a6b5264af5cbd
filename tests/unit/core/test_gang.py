"""Which pods are the gang of a job."""

from ddpjob_operator.core.gang import gang_of
from support.builders import job, observed, pod


def test_a_pod_of_the_attempt_beyond_its_number_of_nodes_is_none_of_the_gang() -> None:
    of = job(nodes=3)
    assert set(gang_of(observed(of, *(pod(of, rank) for rank in range(3))), 2).current) == {0, 1}
