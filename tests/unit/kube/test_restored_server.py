"""An etcd that was restored from a backup: versions go back, and what was written since is gone."""

from collections.abc import AsyncIterator
from typing import Any

from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.lease import Elector
from ddpjob_operator.transport.client import Page
from ddpjob_operator.transport.errors import ConflictError
from ddpjob_operator.transport.resources import PODS
from support.bodies import pod_body


class Lists:
    """Gives these lists, one after the other, and then the last one again."""

    def __init__(self, *lists: tuple[list[Any], int]) -> None:
        self.lists = list(lists)

    async def everything(self, *_: Any) -> AsyncIterator[Page]:
        items, version = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        yield Page(items=items, resource_version=str(version))


async def test_a_list_of_an_older_state_replaces_what_was_known() -> None:
    pods = Cache[str](PODS, "", lambda body, _: str(body["metadata"]["resourceVersion"]), lambda *_: None)
    for name, version in (("kept", 90), ("created since", 95)):
        pods.put(pod_body(version, name=name, uid=name))
    restored: Any = Lists(([pod_body(40, name="kept", uid="kept")], 50))
    assert await pods.refresh(restored, None) == ("50", 2)
    assert list(pods.records()) == ["40"]
    assert pods.num_rewinds == 1, "watches begin again from the list"
    assert pods.put(pod_body(51, name="kept", uid="kept"))


async def test_a_list_that_is_older_than_an_event_that_came_meanwhile_is_no_restore() -> None:
    pods = Cache[str](PODS, "", lambda body, _: str(body["metadata"]["resourceVersion"]), lambda *_: None)
    pods.put(pod_body(40))

    class Late:
        async def everything(self, *_: Any) -> AsyncIterator[Page]:
            pods.put(pod_body(60))
            yield Page(items=[pod_body(40)], resource_version="50")

    late: Any = Late()
    assert await pods.refresh(late, None) == ("50", 0)
    assert (list(pods.records()), pods.num_rewinds) == (["60"], 0)


class LeaseServer:
    """Holds a Lease under versions that can go back."""

    def __init__(self) -> None:
        self.version, self.spec = 0, dict[str, Any]()

    def answer(self, spec: dict[str, Any]) -> Any:
        self.version += 1
        self.spec = {**self.spec, **spec}
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": self.spec}

    async def get(self, *_: Any) -> Any:
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": self.spec}

    async def create(self, _resource: Any, _namespace: Any, body: Any) -> Any:
        if self.spec:
            raise ConflictError("create", "exists", status=409)
        return self.answer(body["spec"])

    async def merge_patch(self, _resource: Any, _namespace: Any, _name: Any, patch: Any) -> Any:
        if patch["metadata"]["resourceVersion"] != str(self.version):
            raise ConflictError("patch", "another version", status=409)
        return self.answer(patch["spec"])


async def test_a_lease_whose_version_went_back_is_renewed_again() -> None:
    server: Any = LeaseServer()
    server.spec, server.version = {"holderIdentity": "me", "leaseDurationSeconds": 18}, 100
    elector = Elector(server, "ns", "op", "me", 18)
    assert await elector.try_acquire()
    server.version = 7  # the backup, in which this process held it already
    assert not await elector.try_acquire(), "it is renewed for the version that was known"
    assert await elector.try_acquire()
    assert server.version == 8
