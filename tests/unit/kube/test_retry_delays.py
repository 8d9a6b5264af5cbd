"""A delay that doubles overflows after a thousand failures, which is half a day of a full quota."""

from ddpjob_operator.core.model import SERVICE, CreateObject, Rejection
from ddpjob_operator.kube.engine.rejections import LAST_RETRY_SECONDS as LAST_REJECTION_SECONDS
from ddpjob_operator.kube.engine.rejections import Rejections
from ddpjob_operator.kube.engine.workqueue import LAST_RETRY_SECONDS, WorkQueue

KEY = ("ns", "job")


async def test_a_reconcile_that_always_fails_is_repeated_at_a_bounded_interval() -> None:
    queue = WorkQueue(8)
    for _ in range(2000):
        delay_seconds = queue.retry(KEY)

    assert 0.7 * LAST_RETRY_SECONDS <= delay_seconds <= 1.3 * LAST_RETRY_SECONDS


def test_a_pod_that_is_always_refused_is_created_again_at_a_bounded_interval() -> None:
    rejections, creation = Rejections(), CreateObject(kind=SERVICE, name="pod", body={})
    for _ in range(2000):
        rejections.record(KEY, [creation], {"pod": Rejection("exceeded quota")}, some_done=False)

    assert 0 < rejections.seconds_to_retry(KEY) <= LAST_REJECTION_SECONDS
