"""A namespace for each test of the operator on a real API server."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

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
T = TypeVar("T")


async def eventually(what: str, probe: Callable[[], Awaitable[T | None]], seconds: float = SECONDS) -> T:
    """Probe until the answer is true, and give it."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        answer = await probe()
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

    async def reaches(self, name: str, phase: str, attempt: int = 1, seconds: float = SECONDS) -> dict[str, Any]:
        """Wait for the job to be in this phase in this attempt; gives its status."""

        async def there() -> dict[str, Any] | None:
            status = await self.status(name)
            return status if (status.get("phase"), status.get("attempt")) == (phase, attempt) else None

        try:
            return await eventually(f"{name} to be {phase} in attempt {attempt}", there, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {await self.status(name)}") from error

    async def reaches_again(self, name: str, attempt: int = 1, seconds: float = SECONDS) -> dict[str, Any]:
        """Wait for the job to run with a pod that was replaced in this attempt; gives its status."""

        async def there() -> dict[str, Any] | None:
            status = await self.status(name)
            runs = (status.get("phase"), status.get("attempt")) == ("Running", attempt)
            return status if runs and status.get("replacedPods") else None

        try:
            return await eventually(f"{name} to run in attempt {attempt} with a replaced pod", there, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {await self.status(name)}") from error

    async def pods(self) -> dict[str, dict[str, Any]]:
        """All pods by name."""
        return await self._all(PODS)

    async def services(self) -> dict[str, dict[str, Any]]:
        """All Services by name."""
        return await self._all(SERVICES)

    async def find(self, resource: Resource, name: str) -> dict[str, Any] | None:
        """An object, or None."""
        try:
            return dict(await self.client.get(resource, self.name, name))
        except NotFoundError:
            return None

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

    async def delete_pod(self, name: str, grace_seconds: int | None = None) -> None:
        """Delete a pod as somebody else would."""
        pod = (await self.pods())[name]
        uid = pod["metadata"]["uid"]
        await self.client.delete(PODS, self.name, name, uid=uid, grace_seconds=grace_seconds)

    async def _all(self, resource: Resource) -> dict[str, dict[str, Any]]:
        items = [item async for page in self.client.pages(resource, self.name) for item in page.items]
        return {item["metadata"]["name"]: dict(item) for item in items}
