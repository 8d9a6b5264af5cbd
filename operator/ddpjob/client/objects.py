"""Single requests about jobs and what belongs to them: reading, listing and creating."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ddpjob.client.errors import NotInstalledError, translated
from ddpjob.client.jobs import Job, JobEvent, Pod, read_event, read_job, read_pod
from ddpjob_operator.api import names
from ddpjob_operator.api.resource import Body
from ddpjob_operator.core.job_names import PLACE, job_of_pod
from ddpjob_operator.transport.client import Client as Transport
from ddpjob_operator.transport.errors import ApiError
from ddpjob_operator.transport.errors import NotFoundError as NoSuchObjectError
from ddpjob_operator.transport.resources import CONFIG_MAPS, DDPJOBS, EVENTS, PODS, of_job

if TYPE_CHECKING:
    from ddpjob.client.files import Files

#: Name of this client as field manager and in audit logs.
MANAGER: Final = "ddpjob-client"
#: How many logs are read at once: each has a connection of its own.
MAX_LOGS: Final = 256


async def get(api: Transport, namespace: str, name: str) -> Job:
    """A job as it is now."""
    with translated("get", DDPJOBS, namespace, name):
        try:
            return read_job(await api.get(DDPJOBS, namespace, name))
        except NoSuchObjectError:
            await _explain_missing_type(api)
            raise


async def list_jobs(api: Transport, namespace: str | None, labels: str) -> list[Job]:
    """The jobs of a namespace, or of all, oldest first."""
    with translated("list", DDPJOBS, namespace):
        try:
            found = [read_job(body) async for page in api.pages(DDPJOBS, namespace, labels) for body in page.items]
        except NoSuchObjectError:
            await _explain_missing_type(api)
            raise
    return sorted(found, key=lambda job: (job.created, job.namespace, job.name))


async def pods(api: Transport, job: Job, attempt: int | None) -> list[Pod]:
    """The pods of a job that exist, by attempt and rank; of a rank the one that has replaced the others comes last."""
    with translated("list", PODS, job.namespace):
        pages = api.pages(PODS, job.namespace, of_job(job.uid, attempt))
        found = [pod async for page in pages for body in page.items if (pod := read_pod(body)) is not None]
    return sorted(found, key=lambda pod: (pod.attempt, pod.rank, pod.replacement))


#: Length of a time up to its seconds; fractions and zones are written in several ways.
_SECONDS: Final = len("2026-11-22T10:00:05")


async def events(api: Transport, job: Job) -> list[JobEvent]:
    """The events of a job and of its pods, oldest first."""
    with translated("list", EVENTS, job.namespace):
        pages = api.pages(EVENTS, job.namespace)
        found = [read_event(body) async for page in pages for body in page.items if _concerns(body, job)]
    return sorted(found, key=lambda event: event.time)


async def create(api: Transport, namespace: str, body: Body, *, dry_run: bool) -> Job:
    """Create a job."""
    sent = _to_send(body, namespace)
    with translated("create", DDPJOBS, namespace, body["metadata"].get("name")):
        try:
            return read_job(await api.create(DDPJOBS, namespace, sent, dry_run=dry_run))
        except NoSuchObjectError:
            await _explain_missing_type(api)
            raise


async def create_with_files(api: Transport, namespace: str, body: Body, files: "Files", *, dry_run: bool) -> Job:
    """Create a job and the ConfigMap of its files, which it owns. Its pods wait for the ConfigMap if they are faster."""
    from ddpjob.client.files import config_map_of, with_files

    changed = with_files(body, files)
    job = await create(api, namespace, changed, dry_run=dry_run)
    config_map = config_map_of(changed, files)
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }
    metadata = {**config_map["metadata"], "namespace": namespace, "ownerReferences": [owner]}
    try:
        with translated("create", CONFIG_MAPS, namespace, metadata["name"]):
            await api.create(CONFIG_MAPS, namespace, {**config_map, "metadata": metadata}, dry_run=dry_run)
    except Exception:
        if not dry_run:
            await delete(api, job)
        raise
    return job


async def apply(api: Transport, namespace: str, body: Body, *, dry_run: bool) -> Body:
    """Create or change a DDPJob or a ConfigMap by server-side apply."""
    resource = {names.KIND: DDPJOBS, "ConfigMap": CONFIG_MAPS}[body["kind"]]
    name = body["metadata"]["name"]
    sent = _to_send(body, namespace)
    with translated("patch", resource, namespace, name):
        try:
            return await api.apply(resource, namespace, name, sent, manager=MANAGER, dry_run=dry_run)
        except NoSuchObjectError:
            await _explain_missing_type(api)
            raise


def _to_send(body: Body, namespace: str) -> Body:
    """The object in this namespace; a DDPJob of an earlier API version, which has the same fields, in the current one."""
    sent = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
    return {**sent, "apiVersion": names.API_VERSION} if body.get("apiVersion") in names.API_VERSIONS else sent


async def delete(api: Transport, job: Job) -> None:
    """Delete a job; what it owns is deleted with it."""
    with translated("delete", DDPJOBS, job.namespace, job.name):
        await api.delete(DDPJOBS, job.namespace, job.name, uid=job.uid, propagation="Background")


async def _explain_missing_type(api: Transport) -> None:
    """Raise NotInstalledError where the server serves DDPJobs in other versions only; called after a 404."""
    try:
        group = await api.group_versions(names.GROUP)
    except ApiError:
        return
    if group and names.VERSION not in group:
        raise NotInstalledError(
            f"the API server serves {names.KIND} in {', '.join(group)}, and this client uses {names.VERSION}; upgrade"
            " the operator's chart, or install the release of ddpjob that the cluster runs"
        )


def _concerns(event: Body, job: Job) -> bool:
    """Whether an event is about the job or one of its pods, and not about an earlier job of the same name."""
    about: Mapping[str, Any] = event.get("involvedObject") or {}
    name = str(about.get("name"))
    if about.get("kind") == names.KIND:
        return name == job.name and about.get("uid") in (None, "", job.uid)
    is_late = read_event(event).time[:_SECONDS] >= job.created[:_SECONDS]
    return about.get("kind") == "Pod" and job_of_pod(name.removesuffix(PLACE)) == job.name and is_late
