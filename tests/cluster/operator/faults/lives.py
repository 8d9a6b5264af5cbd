"""Jobs whose lives are laid down beforehand, so that they end the same with every fault as without.

What happens to a pod depends on its attempt and rank alone, and happens only once its gang is whole; so which pods there
will ever be is known, too. All here goes straight to the API server; only the operator meets faults.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import testbed
from ddpjob_operator.transport.errors import ApiError, NotFoundError
from operator_cluster import Namespace, eventually
from testbed import audit

NUM_NODES = 2
#: What happens to a pod: its program ends with this code, or somebody deletes it.
DELETED = None
Ends = Mapping[tuple[int, int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What must not depend on faults."""

    phase: str
    attempt: int = 1
    counted: int = 0
    infrastructure: int = 0
    failures: tuple[tuple[int, int | None, int | None], ...] = ()
    """Attempt, rank and exit code of each failure in the job's history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What is asked for, what happens, by attempt and rank, and what must become of it."""

    ends: Ends
    outcome: Outcome
    restart: Mapping[str, Any] | None = None


_GOOD_END = {(1, 0): 0, (1, 1): 0}
_GOOD_SECOND_END = {(2, 0): 0, (2, 1): 0}
LIVES = {
    "succeeds": Life(ends=_GOOD_END, outcome=Outcome(phase="Succeeded")),
    "recovers": Life(
        ends={(1, 1): 1, **_GOOD_SECOND_END},
        outcome=Outcome(phase="Succeeded", attempt=2, counted=1, failures=((1, 1, 1),)),
    ),
    "loses-a-pod": Life(
        ends={(1, 0): DELETED, **_GOOD_SECOND_END},
        outcome=Outcome(phase="Succeeded", attempt=2, infrastructure=1, failures=((1, 0, None),)),
    ),
    "must-not-restart": Life(
        ends={(1, 0): 2},
        outcome=Outcome(phase="Failed", failures=((1, 0, 2),)),
        restart={"rules": [{"exitCodes": [2], "action": "Fail"}]},
    ),
    "fails-twice": Life(
        ends={(1, 0): 1, (2, 1): 3},
        outcome=Outcome(phase="Failed", attempt=2, counted=1, failures=((1, 0, 1), (2, 1, 3))),
        restart={"maxRestarts": 1},
    ),
}


class Lives:
    """Jobs of these lives in one namespace; a name is a life's and a number: `recovers-3`."""

    def __init__(self, namespace: Namespace, cluster: testbed.ControlPlane) -> None:
        self.namespace, self._cluster = namespace, cluster
        self.names: list[str] = []
        self._befallen: set[str] = set()

    async def begin(self, kind: str, number: int = 0) -> None:
        """Apply a job of this life."""
        name = f"{kind}-{number}"
        spec = {"nodes": NUM_NODES}
        if restart := LIVES[kind].restart:
            spec |= {"restart": restart}
        await self.namespace.apply(name, **spec)
        self.names.append(name)

    async def is_created(self, name: str) -> None:
        """Wait until the operator has written that all pods of the job exist."""

        async def written() -> bool:
            status = await self.namespace.status(name)
            return any((c["type"], c["status"]) == ("Created", "True") for c in status.get("conditions", ()))

        await eventually(f"the pods of {name} to be known to exist", written)

    @contextlib.asynccontextmanager
    async def take_their_course(self) -> AsyncIterator[None]:
        """Meanwhile, make happen to the pods what is laid down."""

        async def befall() -> None:
            while True:
                with contextlib.suppress(ApiError):  # The API server may be down.
                    await self._befall()
                await asyncio.sleep(0.1)

        task = asyncio.create_task(befall())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def end_as_laid_down(
        self, seconds: float, *, audit_has_gaps: bool = False, second_writer: bool = False
    ) -> None:
        """Wait for all jobs to end, and compare everything: outcomes, pods ever made, and what is left behind.

        The audit log has gaps if the API server was killed: it may have stored an object and not have noted it. A second
        writer with an old view may make a pod again that has gone; it must be deleted and change nothing.
        """

        async def all_ended() -> bool:
            with contextlib.suppress(ApiError):
                return all([(await self.namespace.status(name)).get("completionTime") for name in self.names])
            return False

        try:
            await eventually("all jobs to end", all_ended, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._told()}") from error
        found = {name: _outcome(await self.namespace.status(name)) for name in self.names}
        wrong = {name: outcome for name, outcome in found.items() if outcome != LIVES[_kind(name)].outcome}
        assert not wrong, f"these ended otherwise than without faults: {wrong}"
        created, expected = self._created(), self._expected()
        strange, twice, never = created.keys() - expected.keys(), created - expected, expected - created
        assert not strange, f"nobody needed these: {strange}"
        assert second_writer or not twice, f"created more often than once: {dict(twice)}"
        assert audit_has_gaps or not never, f"never created: {list(never)}"
        await self._nothing_runs_on()
        await self._nothing_is_an_orphan()

    async def _befall(self) -> None:
        pods = await self.namespace.pods()
        running = {name for name, pod in pods.items() if _runs(pod)}
        for name in running - self._befallen:
            job, attempt, rank = _parts(name)
            gang = {f"{job}-{attempt}-{other}" for other in range(NUM_NODES)}
            ends = LIVES[_kind(job)].ends
            if not gang <= running | self._befallen or (attempt, rank) not in ends:
                continue
            code = ends[attempt, rank]
            if code is not DELETED:
                await self.namespace.ends(name, code)
            # A pod that vanishes before Created is True is one that was never made, and is made again.
            elif (await self.namespace.status(job)).get("phase") == "Running":
                with contextlib.suppress(NotFoundError):
                    await self.namespace.delete_pod(name, grace_seconds=0)
            else:
                continue
            self._befallen.add(name)

    def _created(self) -> Counter[tuple[str, str]]:
        """How often each pod and Service was created, by kind and name."""
        return Counter(
            (write.resource, write.name)
            for write in audit.writes(self._cluster.audit_log, self.namespace.name)
            if (write.verb, write.code) == ("create", 201) and write.resource in ("pods", "services")
        )

    def _expected(self) -> Counter[tuple[str, str]]:
        expected = Counter(("services", f"{name}-master") for name in self.names)
        for name in self.names:
            attempts = range(1, LIVES[_kind(name)].outcome.attempt + 1)
            expected.update(("pods", f"{name}-{attempt}-{rank}") for attempt in attempts for rank in range(NUM_NODES))
        return expected

    async def _nothing_runs_on(self) -> None:
        async def still() -> bool:
            return not any(_runs(pod) for pod in (await self.namespace.pods()).values())

        await eventually("no pod of a job that has ended to run", still)

    async def _nothing_is_an_orphan(self) -> None:
        """What has an owner goes with it; that is the cluster's own work, and not waited for."""
        uids = {(await self.namespace.job(name))["metadata"]["uid"] for name in self.names}
        for made in (await self.namespace.pods(), await self.namespace.services()):
            for name, body in made.items():
                assert {owner["uid"] for owner in body["metadata"]["ownerReferences"]} <= uids, name
        for name in self.names:
            await self.namespace.delete_job(name)

    async def _told(self) -> str:
        lines = []
        for name in self.names:
            status = await self.namespace.status(name)
            fields = ("phase", "attempt", "reason", "message", "restarts")
            lines.append(f"{name}: { {field: status.get(field) for field in fields} }")
        pods = {name: pod["status"].get("phase") for name, pod in (await self.namespace.pods()).items()}
        return "\n".join([*lines, f"pods: {pods}"])


def _outcome(status: Mapping[str, Any]) -> Outcome:
    attempts: Sequence[Mapping[str, Any]] = status.get("attempts", ())
    return Outcome(
        phase=status["phase"],
        attempt=status["attempt"],
        counted=status["restarts"]["counted"],
        infrastructure=status["restarts"]["infrastructure"],
        failures=tuple((past["attempt"], past.get("rank"), past.get("exitCode")) for past in attempts),
    )


def _kind(job: str) -> str:
    return job.rpartition("-")[0]


def _parts(pod: str) -> tuple[str, int, int]:
    job, attempt, rank = pod.rsplit("-", 2)
    return job, int(attempt), int(rank)


def _runs(pod: Mapping[str, Any]) -> bool:
    if pod["status"].get("phase") != "Running":
        return False
    return not any("terminated" in container["state"] for container in pod["status"].get("containerStatuses", ()))
