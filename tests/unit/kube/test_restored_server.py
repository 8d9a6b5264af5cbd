"""An etcd that was restored from a backup: versions go back, and what was written since is gone."""

from collections.abc import AsyncIterator
from typing import Any, cast

from ddpjob_operator.kube.cache.cache import Cache
from ddpjob_operator.kube.lease import Elector
from ddpjob_operator.transport.client import Client, Page
from ddpjob_operator.transport.resources import LEASES, PODS
from support.bodies import pod_body
from support.fake_server import FakeServer


async def test_a_list_of_an_older_state_replaces_what_was_known() -> None:
    pods = Cache[str](PODS, "", lambda body, _: str(body["metadata"]["resourceVersion"]), lambda *_: None)
    for name, version in (("kept", 90), ("created since", 95)):
        pods.put(pod_body(version, name=name, uid=name))
    server = FakeServer()
    server.version = 39
    server.put(PODS, pod_body(40, name="kept", uid="kept"))
    server.version = 50
    assert await pods.refresh(cast("Client", server), None) == ("50", 2)
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


async def test_a_lease_whose_version_went_back_is_renewed_again() -> None:
    server = FakeServer()
    lease = {"metadata": {"name": "op"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 18}}
    server.version = 100
    server.put(LEASES, lease)
    elector = Elector(cast("Client", server), "ns", "op", "me", 18)
    assert await elector.try_acquire()
    server.version = 6
    server.put(LEASES, lease)  # the backup, in which this process held it already
    assert not await elector.try_acquire(), "it is renewed for the version that was known"
    assert await elector.try_acquire()
    assert server.version == 8
