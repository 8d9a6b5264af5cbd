"""Thousands of jobs in a queue: what each waits behind comes from one index, and changes seldom."""

from collections.abc import Iterable
from typing import Any

import pytest

from ddpjob_operator.core.model import Kind, Observed, OwnedObject
from ddpjob_operator.core.records import object_of
from ddpjob_operator.kube.cache import store as module
from ddpjob_operator.scheduling.kueue_wait import explain, workloads
from ddpjob_operator.scheduling.position import jobs_before
from support.builders import job
from support.engine import new_store

WORKLOADS = workloads("v1beta2")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1, "1 job"),
        (2, "2 jobs"),
        (10, "10 jobs"),
        (11, "more than 10 jobs"),
        (20, "more than 10 jobs"),
        (21, "more than 20 jobs"),
        (100, "more than 90 jobs"),
        (101, "more than 100 jobs"),
        (2499, "more than 2400 jobs"),
    ],
)
def test_the_place_in_a_queue_is_exact_at_its_front_and_rounded_behind(number: int, said: str) -> None:
    assert jobs_before(number) == f"{said} before it"


def workload(version: int, **status: Any) -> dict[str, Any]:
    metadata = {"name": f"w{version}", "namespace": "ns", "uid": f"u{version}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"queueName": "q"}, "status": status}


def test_an_index_is_built_once_for_all_jobs_and_again_after_a_change_but_at_most_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    store = new_store()
    cache = store.watch(WORKLOADS)
    num_builds = 0

    def build(all_of: Any) -> int:
        nonlocal num_builds
        num_builds += 1
        found: Iterable[OwnedObject] = all_of(WORKLOADS.kind)
        return len(list(found))

    cache.put(workload(1))
    assert [store.index(build) for _ in range(100)] == [1] * 100
    cache.put(workload(2))
    assert (store.index(build), num_builds) == (1, 1)
    now[0] += module.INDEX_SECONDS
    assert [store.index(build) for _ in range(100)] == [2] * 100
    now[0] += 60
    assert (store.index(build), num_builds) == (2, 2), "nothing has changed"


def test_a_workload_is_kept_without_the_thousands_of_domains_of_its_topology() -> None:
    domains = [{"values": [f"rack-{number}"], "count": 1} for number in range(1000)]
    assigned = {"name": "ranks", "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "1"}}
    admission = {"clusterQueue": "cq", "podSetAssignments": [{**assigned, "topologyAssignment": {"domains": domains}}]}
    found = object_of(WORKLOADS, workload(1, admission=admission, conditions=[], nodesToReplace=["n"] * 1000))
    assert found.spec["usesQuotaOf"] == "cq"
    assert "rack" not in str(found)
    assert found.status["admission"]["podSetAssignments"] == [{"flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "1"}}]


def test_a_hundred_queued_jobs_walk_all_workloads_once() -> None:
    walks: list[Kind] = []

    def all_of(kind: Kind) -> list[OwnedObject]:
        walks.append(kind)
        return []

    store = new_store()
    store.all_of = all_of  # type: ignore[method-assign]
    for _ in range(100):
        explain(Observed(job=job(), all_of=store.all_of, indexes=store.index), "v1beta2", "q", "group")
    assert len(walks) == 2, "the Workloads and the LocalQueues"
