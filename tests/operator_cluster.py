"""What the operator's integration tests share: the operator process, and a namespace to work in."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import testbed
from ddpjob_operator.api import names
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import NotFoundError
from ddpjob_operator.transport.resources import DDPJOBS, PODS, SERVICES, Resource

ROOT = Path(__file__).parents[1]
SECONDS = 30.0
T = TypeVar("T")


async def eventually(what: str, probe: Callable[[], Awaitable[T]], seconds: float = SECONDS) -> T:
    """Ask until the answer is true, and give it."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        answer = await probe()
        if answer:
            return answer
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"waited {seconds} s for {what}, in vain; last seen: {answer!r}")
        await asyncio.sleep(0.03)


class OperatorProcess:
    """`python -m ddpjob_operator` against one API server, or a script that does the same with other constants."""

    def __init__(
        self, kubeconfig: Path, log: Path, *arguments: str, program: tuple[str, ...] = ("-m", "ddpjob_operator")
    ) -> None:
        (self.port,) = testbed.free_ports(1)
        self.log = log
        self._kubeconfig, self._arguments, self._program = kubeconfig, arguments, program
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        testbed.wait_for("the operator to be ready", self._is_ready_or_dead, seconds=60)

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it and return at once."""
        command = [
            *(sys.executable, *self._program),
            *("--trainer-image", "trainer:1", "--health-port", str(self.port)),
            *("--progress-interval-seconds", "1", *self._arguments),
        ]
        environment = {
            **os.environ,
            "KUBECONFIG": str(self._kubeconfig),
            "PYTHONPATH": f"{ROOT / 'operator'}{os.pathsep}{ROOT / 'trainer'}",
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        return self.process

    def kill(self) -> None:
        """End it without a word."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end; gives its exit code."""
        return self._end(signal.SIGTERM)

    def get(self, path: str) -> str:
        """Body of one of its own pages."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        """Whether it says that it is."""
        try:
            return self.get("/readyz") == "ok\n"
        except (urllib.error.URLError, OSError):
            return False

    def _is_ready_or_dead(self) -> bool:
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            raise AssertionError(f"the operator ended with code {code}:\n{self.log.read_text()[-4000:]}")
        return self.is_ready()

    def _end(self, signal_number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(signal_number)
        return self.process.wait(timeout=10)


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

    async def reaches(self, name: str, phase: str, attempt: int = 1) -> dict[str, Any]:
        """Wait for the job to be in this phase in this attempt; gives its status."""

        async def there() -> dict[str, Any] | None:
            status = await self.status(name)
            return status if (status.get("phase"), status.get("attempt")) == (phase, attempt) else None

        try:
            return await eventually(f"{name} to be {phase} in attempt {attempt}", there)  # type: ignore[return-value]
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

    async def ends(self, pod: str, code: int, message: str = "") -> None:
        """Have the make-believe node end a pod's program."""
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
