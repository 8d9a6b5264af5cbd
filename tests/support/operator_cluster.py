"""A namespace for each test of the operator on a real API server."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import testbed
from ddpjob_operator.api import names
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import NotFoundError, RejectedError
from ddpjob_operator.transport.resources import DDPJOBS, PODS, SERVICES, Resource
from testbed.kubectl import KubectlError

#: Longest wait for what takes a second or less on a machine without other load.
SECONDS = 120.0
#: The garbage collector looks for new resource types every 30 s, so it may not know DDPJobs yet.
GARBAGE_COLLECTOR_SECONDS = 240.0
#: Of the Lease of operators under test: some tests wait until it expires; a request may take a quarter of it, and on a busy
#: machine tens of milliseconds become a second.
LEASE_SECONDS = 6
SERVICE_ACCOUNTS = Resource(prefix="/api/v1", plural="serviceaccounts")
NAMESPACES = Resource(prefix="/api/v1", plural="namespaces")
T = TypeVar("T")


@overload
async def eventually(what: str, probe: Callable[[], Awaitable[T | None]], seconds: float = SECONDS) -> T: ...
@overload
async def eventually(what: str, probe: Callable[[], T | None], seconds: float = SECONDS) -> T: ...
async def eventually(what: str, probe: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Probe until the answer, which may have to be awaited, is true, and give it."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        answer = probe()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"timed out after {seconds} s waiting for {what}; last answer: {answer!r}")
        await asyncio.sleep(0.03)


async def gets_the_right(cluster: testbed.ControlPlane, account: str, verb: str, resource: str) -> None:
    """Wait until the API server, which sees new roles after a moment, lets NAMESPACE:ACCOUNT do this in the namespace."""
    user = ("-n", account.partition(":")[0], f"--as=system:serviceaccount:{account}")

    async def may() -> bool:
        try:
            return cluster.kubectl("auth", "can-i", verb, resource, *user).strip() == "yes"
        except KubectlError:  # no
            return False

    await eventually(f"{account} to get the right to {verb} {resource}", may)


@contextmanager
def kwok_nodes(cluster: testbed.ControlPlane, number: int, *, gpus: int) -> Iterator[list[str]]:
    """KWOK nodes for one test. They are deleted at its end, with those that it adds to the list."""
    nodes = cluster.add_kwok_nodes(number, gpus=gpus)
    try:
        yield nodes
    finally:
        cluster.kubectl("delete", "node", *nodes, "--wait=false")


class Namespace:
    """One test's namespace, seen through the API server."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    async def apply(self, name: str, **spec: Any) -> dict[str, Any]:
        """Create a DDPJob; its program is any."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": self.name},
            "spec": {"command": ["python", "train.py"], **spec},
        }
        return dict(await self.client.create(DDPJOBS, self.name, body))

    async def edit(self, name: str, **spec: Any) -> None:
        """Change fields of a DDPJob's spec."""
        await self.client.merge_patch(DDPJOBS, self.name, name, {"spec": spec})

    async def delete_job(self, name: str) -> None:
        """Delete a DDPJob as kubectl does."""
        job = await self.job(name)
        await self.client.delete(DDPJOBS, self.name, name, uid=job["metadata"]["uid"], propagation="Background")

    async def job(self, name: str) -> dict[str, Any]:
        """A DDPJob as it is now."""
        return dict(await self.client.get(DDPJOBS, self.name, name))

    async def status(self, name: str) -> dict[str, Any]:
        """Its status."""
        return dict((await self.job(name)).get("status", {}))

    async def shows(self, name: str, text: str = "", *, seconds: float = SECONDS, **fields: Any) -> dict[str, Any]:
        """Wait until the status of a job has these fields, and this text in its message; gives the status."""

        async def there() -> dict[str, Any] | None:
            status = await self.status(name)
            has_fields = {field: status.get(field) for field in fields} == fields
            return status if has_fields and text in status.get("message", "") else None

        try:
            return await eventually(f"the status of {name} to have {fields} and {text!r}", there, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {await self.status(name)}") from error

    async def reaches(self, name: str, phase: str, attempt: int = 1, seconds: float = SECONDS) -> dict[str, Any]:
        """Wait for the job to be in this phase in this attempt; gives its status."""
        return await self.shows(name, phase=phase, attempt=attempt, seconds=seconds)

    async def succeeds(self, name: str, attempt: int = 1) -> dict[str, Any]:
        """End all programs of this attempt with exit code 0, and wait for the end of the job; gives its status."""
        for pod, body in (await self.pods()).items():
            is_there = body["status"]["phase"] == "Running" and "deletionTimestamp" not in body["metadata"]
            if is_there and pod.startswith(f"{name}-{attempt}-"):
                await self.ends(pod, 0)
        return await self.reaches(name, "Succeeded", attempt)

    async def pods(self) -> dict[str, dict[str, Any]]:
        """All pods by name."""
        return await self.all(PODS)

    async def has_pods(
        self, what: str, hold: Callable[[dict[str, dict[str, Any]]], bool], seconds: float = SECONDS
    ) -> dict[str, dict[str, Any]]:
        """Wait until this is true of the pods by name; gives them."""

        async def there() -> tuple[dict[str, dict[str, Any]]] | None:
            pods = await self.pods()
            return (pods,) if hold(pods) else None

        pods: dict[str, dict[str, Any]] = (await eventually(what, there, seconds))[0]
        return pods

    async def services(self) -> dict[str, dict[str, Any]]:
        """All Services by name."""
        return await self.all(SERVICES)

    async def find(self, resource: Resource, name: str) -> dict[str, Any] | None:
        """An object, or None."""
        try:
            return dict(await self.client.get(resource, self.name, name))
        except NotFoundError:
            return None

    async def loses(self, resource: Resource, name: str, seconds: float = GARBAGE_COLLECTOR_SECONDS) -> None:
        """Wait until an object does not exist."""

        async def gone() -> bool:
            return await self.find(resource, name) is None

        await eventually(f"{resource.plural} {name} to go", gone, seconds)

    async def admits(self, what: str, is_seen: Callable[[dict[str, Any] | RejectedError], bool], **spec: Any) -> None:
        """Wait until admission, which sees new objects and labels after a moment, does `what` to a pod with this spec.

        `is_seen` gets the pod as it would be created, or the refusal. No pod is created.
        """
        container = {"name": "probe", "image": "probe"}
        body = {"metadata": {"name": "probe"}, "spec": {"containers": [container], **spec}}

        async def seen() -> bool:
            try:
                answer: dict[str, Any] | RejectedError = dict(
                    await self.client.create(PODS, self.name, body, dry_run=True)
                )
            except RejectedError as error:
                answer = error
            return is_seen(answer)

        await eventually(f"admission to {what}", seen)

    async def ends(self, pod: str, code: int, message: str = "") -> None:
        """Have the KWOK node end a pod's program."""
        annotations = {"testbed/exit-code": str(code), "testbed/exit-message": message}
        await self.client.merge_patch(PODS, self.name, pod, {"metadata": {"annotations": annotations}})

    async def bind(self, pod: str, node: str) -> None:
        """Give a pod a node, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        resource = Resource(prefix=PODS.prefix, plural=f"pods/{pod}/binding")
        await self.client.create(resource, self.name, {"target": target, "metadata": {"name": pod}})

    async def delete_pod(self, name: str, grace_seconds: int | None = None) -> None:
        """Delete a pod as somebody else would."""
        pod = (await self.pods())[name]
        uid = pod["metadata"]["uid"]
        await self.client.delete(PODS, self.name, name, uid=uid, grace_seconds=grace_seconds)

    async def all(self, resource: Resource) -> dict[str, dict[str, Any]]:
        """All objects of this kind by name."""
        items = [item async for page in self.client.pages(resource, self.name) for item in page.items]
        return {item["metadata"]["name"]: dict(item) for item in items}


async def create_namespace(client: Client, name: str) -> Namespace:
    """A new namespace, in which pods can be created."""
    await client.create(NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    namespace = Namespace(client, name)
    # Admission refuses pods until it exists.
    await eventually("the default service account", lambda: namespace.find(SERVICE_ACCOUNTS, "default"))
    return namespace
