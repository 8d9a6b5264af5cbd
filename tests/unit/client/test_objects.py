"""The events of a job are its own and those of its pods, not those of an earlier job of the same name."""

from typing import Any

from ddpjob.client.jobs import read_job
from ddpjob.client.objects import events, pods
from ddpjob_operator.api.names import LABEL_ATTEMPT, LABEL_JOB_UID, LABEL_RANK, LABEL_REPLACEMENT
from ddpjob_operator.transport.resources import EVENTS, PODS, Resource
from support.fake_server import FakeServer

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


def server(resource: Resource, *items: dict[str, Any]) -> Any:
    """An API server that keeps these."""
    made = FakeServer()
    for number, item in enumerate(items):
        made.put(resource, {**item, "metadata": {"name": f"event-{number}", **item["metadata"]}}, "a")
    return made


async def test_events_of_an_earlier_job_of_the_same_name_are_left_out() -> None:
    kept = server(
        EVENTS,
        event("Pod", "net-1-0", "04.999999"),
        event("DDPJob", "net", "04.000000", uid="old"),
        event("Pod", "net-1-0", "05.100000"),
        event("Pod", "network-1-0", "06.000000"),
        event("DDPJob", "net", "07.000000", uid="new"),
    )

    found = [each.reason for each in await events(kept, JOB)]

    assert found == ["net-1-0 05.100000", "net 07.000000"]


async def test_events_of_pods_that_replace_others_and_of_those_that_wait_for_nodes_are_among_them() -> None:
    names = ["net-1-0-r1", "net-2-3-place", "net-1-spare0-2", "net-1-0-r1x", "net-1-r1", "net-1-spare0"]
    kept = server(EVENTS, *(event("Pod", name, "06") for name in names))

    found = [each.object for each in await events(kept, JOB)]

    assert found == ["Pod/net-1-0-r1", "Pod/net-2-3-place", "Pod/net-1-spare0-2"]


async def test_of_a_rank_the_newest_pod_comes_last() -> None:
    """`ddpjob exec` runs its command there. By name the tenth replacement would come before the ninth."""

    def body(replacement: int) -> dict[str, Any]:
        labels = {LABEL_JOB_UID: "new", LABEL_ATTEMPT: "1", LABEL_RANK: "1", LABEL_REPLACEMENT: str(replacement)}
        return {"metadata": {"name": f"net-1-1-r{replacement}", "labels": labels}}

    found = await pods(server(PODS, body(10), body(9)), JOB, None)

    assert [pod.name for pod in found] == ["net-1-1-r9", "net-1-1-r10"]
