"""What holds for each provider that schedules gangs: a gang gets all its places or none, and keeps and returns them as a whole."""

from typing import Any

import pytest

import testbed
from ddpjob_operator.transport.resources import PODS
from support.gang_providers import PROVIDERS, WAITING, Places, Provider
from support.operator_cluster import GARBAGE_COLLECTOR_SECONDS, eventually

#: A gang releases the places of a part of it after 45 s at most, then pauses for up to 23 s.
RELEASE_SECONDS = 240.0
#: A pod that never had a node counts as ended when the pod garbage collector has been there, which it is every 20 s.
POD_COLLECTOR_SECONDS = 240.0


async def holds_nothing_but(places: Places, *groups: str) -> None:
    async def does() -> bool:
        return set(await places.groups()) == set(groups)

    await eventually(f"the groups to be {groups}", does, POD_COLLECTOR_SECONDS)


async def test_a_gang_gets_all_its_places_or_none_and_says_what_it_waits_for(
    places: Places, provider: Provider
) -> None:
    await places.add(1)
    await places.submit("j", nodes=2)
    status = await places.waits("j", provider.waits)
    assert status["scheduling"] == {"provider": provider.name}
    assert places.size_of((await places.groups())[await places.group("j")]) == 2
    await places.add(1)
    await places.namespace.reaches("j", "Running")


@pytest.mark.parametrize("num_gangs", [2, pytest.param(20, marks=pytest.mark.nightly)])
async def test_gangs_that_compete_run_one_after_the_other_and_release_nothing(places: Places, num_gangs: int) -> None:
    space, nodes = places.namespace, 4
    waiting = {f"gang-{number}" for number in range(num_gangs)}
    for name in sorted(waiting):
        await places.submit(name, nodes=nodes)
    await space.has_pods(
        "the schedulers to know all pods",
        lambda pods: sum("conditions" in pod["status"] for pod in pods.values()) == nodes * num_gangs,
    )
    await places.add(nodes)

    async def one_runs() -> str | None:
        phases = {name: (await space.status(name))["phase"] for name in waiting}
        return next((name for name, phase in phases.items() if phase == "Running"), None)

    while waiting:
        runs = await eventually("a gang to run", one_runs)
        waiting.remove(runs)
        assert [await places.num_placed(f"{name}-") for name in waiting] == [0] * len(waiting)
        status = await space.succeeds(runs)
        assert (status["attempt"], status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (1, 0, 0)


@pytest.mark.parametrize("is_deleted", [False, True], ids=["killed", "deleted"])
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_lost_pod_is_replaced_in_the_group_of_the_others_which_keep_their_places(
    places: Places, provider: Provider, rank: int, is_deleted: bool
) -> None:
    """One free place is enough, although another gang waits for two."""
    space, lost = places.namespace, f"j-1-{rank}"
    group = await places.running("j", 2, **WAITING)
    held = places.holds_since((await places.groups())[group])
    await places.submit("b", nodes=2)
    await places.waits("b", provider.waits)

    await (space.delete_pod(lost) if is_deleted else space.ends(lost, 137))
    await space.shows("j", phase="Running", attempt=1, replacedPods=[{"rank": rank, "replacement": 1}])
    pods = await space.pods()
    assert {places.group_of(pods[pod]) for pod in (f"j-1-{1 - rank}", f"{lost}-r1")} == {group}
    assert "deletionTimestamp" not in pods[f"j-1-{1 - rank}"]["metadata"]
    await space.has_pods(
        "a killed pod to stay as evidence that is released, and a deleted one to go",
        lambda pods: lost not in pods if is_deleted else not pods[lost]["metadata"].get("finalizers"),
    )

    async def is_complete() -> bool:
        return not places.misses_pods((await places.groups())[group])

    await eventually("the scheduler to count the new pod", is_complete)
    await places.waits("b", provider.waits)
    assert places.holds_since((await places.groups())[group]) == held

    await space.succeeds("j")
    await space.reaches("b", "Running")
    await holds_nothing_but(places, await places.group("b"))


async def test_a_restart_keeps_its_places_or_gets_a_group_of_its_own_and_a_suspended_gang_has_none(
    places: Places, provider: Provider
) -> None:
    space = places.namespace
    first = await places.running("j", 2)
    await space.ends("j-1-1", 1, "ValueError: boom")
    status = await space.reaches("j", "Running", attempt=2)
    assert status["restarts"]["counted"] == 1
    second = await places.group("j", attempt=2)
    assert (second == first) is provider.keeps_group
    await holds_nothing_but(places, second)
    assert "j-1-1" in await space.pods(), "a failed pod stays as evidence"

    await space.edit("j", suspend=True)
    await space.reaches("j", "Suspended", attempt=3)
    await holds_nothing_but(places)
    await space.edit("j", suspend=False)
    await space.reaches("j", "Running", attempt=3)
    third = await places.group("j", attempt=3)
    assert third not in (first, second)
    await space.succeeds("j", attempt=3)
    await holds_nothing_but(places)


async def test_a_gang_that_fails_or_is_deleted_while_it_waits_or_runs_returns_its_places(
    places: Places, provider: Provider
) -> None:
    space = places.namespace
    await places.running("fails", 2, restart={"maxRestarts": 0})
    await places.submit("waits", nodes=2)
    await places.waits("waits", provider.waits)
    await space.delete_job("waits")  # its pods never have a node
    await places.submit("deleted", nodes=2)
    await places.waits("deleted", provider.waits)
    await space.ends("fails-1-0", 1, "ValueError: boom")
    await space.reaches("fails", "Failed")
    await space.reaches("deleted", "Running")
    await space.delete_job("deleted")
    await places.submit("last", nodes=2)
    await space.reaches("last", "Running")
    await holds_nothing_but(places, await places.group("last"))
    pods = await space.has_pods(
        "the pods of deleted jobs to go",
        lambda pods: not any(name.startswith(("deleted-", "waits-")) for name in pods),
        GARBAGE_COLLECTOR_SECONDS,
    )
    assert "fails-1-0" in pods, "a failed job keeps its evidence"


async def test_a_gang_of_another_size_has_a_group_of_this_size(places: Places, cluster: testbed.ControlPlane) -> None:
    space = places.namespace
    await places.add(2)
    await places.submit("j", nodes=3)
    await space.has_pods("all pods to wait", lambda pods: len(pods) == 3)
    groups = [await places.group("j")]
    for attempt, nodes in ((2, 2), (3, 1)):
        cluster.kubectl("scale", "ddpjob", "j", f"--replicas={nodes}", "-n", space.name)
        status = await space.reaches("j", "Running", attempt=attempt)
        restarts = status["restarts"]
        assert (status["ready"], restarts["counted"], restarts["infrastructure"]) == (f"{nodes}/{nodes}", 0, 0)
        group = await places.group("j", attempt)
        assert group not in groups
        groups.append(group)
        await holds_nothing_but(places, group)
        assert places.size_of((await places.groups())[group]) == nodes
    await space.succeeds("j", attempt=3)


def those_that(attribute: str) -> pytest.MarkDecorator:
    """Run a test with the providers that have this attribute."""
    chosen = [provider for provider in PROVIDERS if getattr(provider, attribute)]
    return pytest.mark.parametrize(
        "provider", chosen, ids=[each.name for each in chosen], indirect=True, scope="module"
    )


@those_that("preempts")
@pytest.mark.timeout(600)
async def test_a_preempted_gang_saves_and_runs_again_after_the_other_without_being_counted(
    places: Places, provider: Provider
) -> None:
    space = places.namespace
    group = await places.running("low", 2)
    saves = {"testbed/stop-exit-code": "75", "testbed/exit-message": "checkpointStep=7"}
    for rank in range(2):
        await space.client.merge_patch(PODS, space.name, f"low-1-{rank}", {"metadata": {"annotations": saves}})
    await places.submit("high", priority="high", nodes=2)
    await space.reaches("high", "Running")
    status = await places.waits("low", "", attempt=2)
    assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 1)
    assert (status["failure"]["reason"], status["failure"]["checkpointStep"]) == ("Preempted", 7)
    assert (await places.group("low", attempt=2) == group) is provider.keeps_group
    await space.succeeds("high")
    await space.reaches("low", "Running", attempt=2)


@those_that("places_fewer")
async def test_a_lost_pod_that_finds_no_place_says_so_and_the_gang_releases_its_own(
    places: Places, cluster: testbed.ControlPlane
) -> None:
    space = places.namespace
    await places.running("j", 3, **WAITING)
    node = (await space.pods())["j-1-1"]["spec"]["nodeName"]
    cluster.kubectl("cordon", node)
    await space.delete_pod("j-1-1")
    await space.shows("j", "1 of 3 pods have no node: ")
    await space.shows("j", phase="Pending", attempt=2, seconds=RELEASE_SECONDS)
    assert await places.num_placed("j-2-") == 0
    cluster.kubectl("uncordon", node)
    await space.reaches("j", "Running", attempt=2, seconds=RELEASE_SECONDS)
    await space.succeeds("j", attempt=2)


@those_that("places_fewer")
@pytest.mark.timeout(600)
async def test_a_gang_with_min_nodes_gets_these_together_runs_on_what_it_gets_and_grows(places: Places) -> None:
    space = places.namespace

    async def runs(ready: str) -> dict[str, Any]:
        return await space.shows("j", phase="Running", ready=ready, seconds=RELEASE_SECONDS)

    await places.add(1)
    await places.submit("j", nodes=4, minNodes=2, deadlines={"fullSizeSeconds": 10, "fewerNodesSeconds": 1})
    await places.waits("j", "no nodes for 2 of the 4 pods together: ")
    assert places.size_of((await places.groups())[await places.group("j")]) == 2
    await places.add(1)
    await space.shows("j", "2 of 4 pods have no node: ")
    assert (await runs("2/2"))["shrunkFrom"] == 4
    await space.shows("j", "0 of 2 pods that wait for the missing nodes have one")
    await places.add(2)
    status = await runs("4/4")
    assert (status["restarts"]["counted"], status["restarts"]["infrastructure"]) == (0, 0)
    await space.succeeds("j", status["attempt"])
    await holds_nothing_but(places)
