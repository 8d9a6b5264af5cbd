"""What the API server refuses to stop or to delete, a policy for example, is tried again with few requests."""

from collections.abc import Collection
from typing import cast

from ddpjob_operator.core.actions import DeletePod
from ddpjob_operator.kube.engine.actuator import Actuator
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.engine.rejections import Rejections
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import RejectedError
from support.builders import job
from support.engine import new_store
from support.fake_server import FakeServer

PODS = [DeletePod(name=f"pod-{number}", uid=f"uid-{number}", grace_seconds=5) for number in range(1000)]


class Rounds:
    """An actuator whose server refuses to delete these pods."""

    def __init__(self, refused: Collection[str]) -> None:
        denied = RejectedError("delete", "denied by policy", status=403)
        self.server = FakeServer(refuse=lambda request: denied if request.name in refused else None)
        self.actuator = Actuator(
            cast("Client", self.server), new_store(), Expectations(JobMemories()), Rejections(JobMemories())
        )

    async def round(self) -> list[str]:
        """The names of the pods that it asked for."""
        self.server.requests.clear()
        await self.actuator.run(job(), PODS)
        return [request.name for request in self.server.requests]


async def test_a_thousand_refused_deletions_cost_one_request_for_each_retry_and_another_one_each_time() -> None:
    rounds = Rounds({pod.name for pod in PODS})
    assert len(await rounds.round()) == 1000
    asked = [await rounds.round() for _ in range(10)]
    assert {len(names) for names in asked} == {1}
    assert len({names[0] for names in asked}) == 10


async def test_once_the_policy_is_gone_all_are_deleted_in_one_round() -> None:
    rounds = Rounds({pod.name for pod in PODS})
    await rounds.round()
    rounds.server.refuse = lambda _: None
    assert len(await rounds.round()) == 1000


async def test_one_pod_that_may_never_be_deleted_holds_up_no_other() -> None:
    rounds = Rounds({"pod-0"})
    assert len(await rounds.round()) == 1000
