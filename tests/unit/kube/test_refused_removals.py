"""What the API server refuses to stop or to delete, a policy for example, is tried again with few requests."""

from typing import Any, cast

from ddpjob_operator.core.actions import DeletePod
from ddpjob_operator.kube.engine.actuator import Actuator
from ddpjob_operator.kube.engine.expectations import Expectations
from ddpjob_operator.kube.engine.rejections import Rejections
from ddpjob_operator.transport.errors import RejectedError
from support.builders import job
from support.engine import new_store

PODS = [DeletePod(name=f"pod-{number}", uid=f"uid-{number}", grace_seconds=5) for number in range(1000)]


class Server:
    """Refuses to delete these pods."""

    def __init__(self, refused: set[str]) -> None:
        self.refused, self.asked = refused, list[str]()

    async def delete(self, _resource: Any, _namespace: str, name: str, **_: Any) -> None:
        self.asked.append(name)
        if name in self.refused:
            raise RejectedError(f"delete {name}", "denied by policy", status=403)


class Rounds:
    """An actuator, and the names of the pods that it asked for in each round."""

    def __init__(self, refused: set[str]) -> None:
        self.server = Server(refused)
        store = new_store()
        self.actuator = Actuator(cast("Any", self.server), store, Expectations(), Rejections())

    async def round(self) -> list[str]:
        self.server.asked.clear()
        await self.actuator.run(job(), PODS)
        return list(self.server.asked)


async def test_a_thousand_refused_deletions_cost_one_request_for_each_retry_and_another_one_each_time() -> None:
    rounds = Rounds({pod.name for pod in PODS})
    assert len(await rounds.round()) == 1000
    asked = [await rounds.round() for _ in range(10)]
    assert {len(names) for names in asked} == {1}
    assert len({names[0] for names in asked}) == 10


async def test_once_the_policy_is_gone_all_are_deleted_in_one_round() -> None:
    rounds = Rounds({pod.name for pod in PODS})
    await rounds.round()
    rounds.server.refused = set()
    assert len(await rounds.round()) == 1000


async def test_one_pod_that_may_never_be_deleted_holds_up_no_other() -> None:
    rounds = Rounds({"pod-0"})
    assert len(await rounds.round()) == 1000
