"""What people, policies and strangers do to a job and its Service, as `disturbances.py` describes."""

from collections.abc import Sequence
from typing import Any

from ddpjob_operator.api import names
from simulation.api_server import PODS, SERVICES, Body, owner_uid
from simulation.world import JOB, World


def edit_shape(world: World, pick: int) -> None:
    """Another shape, which the API server takes only while the job is suspended."""
    job = world.job()
    if job is not None and job["spec"].get("suspend"):
        world.patch_spec({"masterPort": 30000 + pick} if pick % 2 else {"nodes": 1 + pick // 2 % 3})


def resize(world: World, pick: int) -> None:
    """With `kubectl scale`."""
    _scale(world, 1 + pick % 3)


def resize_and_back(world: World, pick: int) -> None:
    """The same, and soon back: within one reconcile, or while the pods stop."""
    job = world.job()
    if job is not None:
        _scale(world, 1 + pick % 3)
        world.later((0.0, 0.01, 0.3, 3.0)[pick // 3 % 4], _scale, world, job["spec"]["nodes"])


def _scale(world: World, nodes: int) -> None:
    job = world.job()
    if job is not None:
        world.patch_spec({"nodes": max(nodes, job["spec"].get("minNodes", 1))})


def edit_sizes(world: World, pick: int) -> None:
    """Other limits of a job that may run on fewer nodes."""
    job, least, seconds = world.job(), world.schedule.min_nodes, world.schedule.full_size_seconds
    if job is None or least is None:
        return
    changes: Sequence[Body] = (
        {"minNodes": None},
        {"minNodes": least},
        {"minNodes": job["spec"]["nodes"]},
        {"deadlines": {"fewerNodesSeconds": None}},
        {"deadlines": {"fewerNodesSeconds": 20}},
        {"deadlines": {"fullSizeSeconds": 2 * seconds}},
    )
    change = changes[pick % len(changes)]
    if (change.get("minNodes") or 0) <= job["spec"]["nodes"]:  # the API server refuses others
        world.patch_spec(change)


def edit_limits(world: World, pick: int) -> None:
    """Other limits, which take effect at once."""
    change: Body = ({"restart": {"maxRestarts": pick % 5}}, {"deadlines": {"activeSeconds": 600}})[pick % 2]
    world.patch_spec(change)


def delete_service(world: World, pick: int) -> None:  # noqa: ARG001
    """Somebody deletes the master Service."""
    for body in world.server.all(SERVICES):
        world.server.remove(SERVICES, body["metadata"]["uid"], "user")


def edit_service(world: World, pick: int) -> None:
    """Somebody changes its selector."""
    added = {"team": "a"} if pick % 2 else {names.LABEL_ATTEMPT: "1"}
    for body in world.server.all(SERVICES):
        if owner_uid(body):
            name = body["metadata"]["name"]
            world.server.merge_patch(SERVICES, name, {"spec": {"selector": added}}, None, "user")


def strangers_service(world: World, pick: int) -> None:  # noqa: ARG001
    """A Service of another owner has the Service's name."""
    delete_service(world, 0)
    body = {"metadata": {"name": f"{JOB}-master"}, "spec": {"selector": {"app": "other"}}}
    world.server.create(SERVICES, body, "user")


def strangers_pod(world: World, pick: int) -> None:
    """A pod of another owner has the name of a pod of the next attempt."""
    job = world.job()
    attempt = 1 + ((job.get("status") or {}).get("attempt", 1) if job else 0)
    name = f"{JOB}-{attempt}-{pick % world.schedule.nodes}"
    if world.server.find(PODS, name) is None:
        body: dict[str, Any] = {"metadata": {"name": name}, "spec": {"containers": [], "nodeName": "elsewhere"}}
        world.server.create(PODS, {**body, "status": {"phase": "Running"}}, "user")


def recreate_job(world: World, pick: int) -> None:  # noqa: ARG001
    """With `kubectl apply` of the same manifest, where there is no such job."""
    if world.job() is None:
        world.apply_job()


def replace_job(world: World, pick: int) -> None:
    """With `kubectl replace --force`: another job of the same name follows at once."""
    world.delete_job()
    world.later((0.01, 0.5)[pick % 2], recreate_job, world, 0)
