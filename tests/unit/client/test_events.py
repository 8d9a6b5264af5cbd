"""The events of a job are its own and those of its pods, not those of an earlier job of the same name."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from ddpjob.client.jobs import read_job
from ddpjob.client.objects import events, pods
from ddpjob_operator.api.names import LABEL_ATTEMPT, LABEL_RANK, LABEL_REPLACEMENT

JOB = read_job(
    {
        "spec": {},
        "metadata": {"name": "net", "namespace": "a", "uid": "new", "creationTimestamp": "2026-11-22T10:00:05Z"},
    }
)


def event(kind: str, name: str, time: str, uid: str = "") -> dict[str, Any]:
    about = {"kind": kind, "name": name, "uid": uid}
    return {
        "metadata": {},
        "reason": f"{name} {time}",
        "eventTime": f"2026-11-22T10:00:{time}Z",
        "involvedObject": about,
    }


class Server:
    """A server that keeps events."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = items

    async def pages(self, *_: object) -> AsyncIterator[SimpleNamespace]:
        """All events in one page."""
        yield SimpleNamespace(items=self.items)


async def test_events_of_an_earlier_job_of_the_same_name_are_left_out() -> None:
    server = Server(
        event("Pod", "net-1-0", "04.999999"),
        event("DDPJob", "net", "04.000000", uid="old"),
        event("Pod", "net-1-0", "05.100000"),
        event("Pod", "network-1-0", "06.000000"),
        event("DDPJob", "net", "07.000000", uid="new"),
    )

    found = [each.reason for each in await events(server, JOB)]  # type: ignore[arg-type]  # only `pages` is used

    assert found == ["net-1-0 05.100000", "net 07.000000"]


async def test_events_of_pods_that_replace_others_and_of_those_that_wait_for_nodes_are_among_them() -> None:
    names = ["net-1-0-r1", "net-2-3-place", "net-1-spare0-2", "net-1-0-r1x", "net-1-r1", "net-1-spare0"]
    server = Server(*(event("Pod", name, "06") for name in names))

    found = [each.object for each in await events(server, JOB)]  # type: ignore[arg-type]  # only `pages` is used

    assert found == ["Pod/net-1-0-r1", "Pod/net-2-3-place", "Pod/net-1-spare0-2"]


async def test_of_a_rank_the_newest_pod_comes_last() -> None:
    """`ddpjob exec` runs its command there. By name the tenth replacement would come before the ninth."""

    def body(replacement: int) -> dict[str, Any]:
        labels = {LABEL_ATTEMPT: "1", LABEL_RANK: "1", LABEL_REPLACEMENT: str(replacement)}
        return {"metadata": {"name": f"net-1-1-r{replacement}", "labels": labels}}

    found = await pods(Server(body(10), body(9)), JOB, None)  # type: ignore[arg-type]  # only `pages` is used

    assert [pod.name for pod in found] == ["net-1-1-r9", "net-1-1-r10"]
