"""Jobs whose pods end according to a script, so that their outcomes are the same with every fault as without.

What happens to a pod depends on its attempt and rank alone, and happens only once its gang is complete; so all pods that
will ever be created are known, too. Only the operator meets faults: this module uses the API server directly.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import testbed
from ddpjob_operator.transport.errors import ApiError, NotFoundError
from support.operator_cluster import Namespace, eventually
from testbed import audit

NUM_NODES = 2
#: The end of a pod: its program ends with this exit code, or the pod is deleted.
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
class Script:
    """A job's restart policy, how its pods end, by attempt and rank, and the outcome that it must have."""

    ends: Ends
    outcome: Outcome
    restart: Mapping[str, Any] | None = None


_GOOD_END = {(1, 0): 0, (1, 1): 0}
_GOOD_SECOND_END = {(2, 0): 0, (2, 1): 0}
SCRIPTS = {
    "succeeds": Script(ends=_GOOD_END, outcome=Outcome(phase="Succeeded")),
    "recovers": Script(
        ends={(1, 1): 1, **_GOOD_SECOND_END},
        outcome=Outcome(phase="Succeeded", attempt=2, counted=1, failures=((1, 1, 1),)),
    ),
    "loses-a-pod": Script(
        ends={(1, 0): DELETED, **_GOOD_SECOND_END},
        outcome=Outcome(phase="Succeeded", attempt=2, infrastructure=1, failures=((1, 0, None),)),
    ),
    "must-not-restart": Script(
        ends={(1, 0): 2},
        outcome=Outcome(phase="Failed", failures=((1, 0, 2),)),
        restart={"rules": [{"exitCodes": [2], "action": "Fail"}]},
    ),
    "fails-twice": Script(
        ends={(1, 0): 1, (2, 1): 3},
        outcome=Outcome(phase="Failed", attempt=2, counted=1, failures=((1, 0, 1), (2, 1, 3))),
        restart={"maxRestarts": 1},
    ),
}


class ScriptedJobs:
    """Scripted jobs in one namespace. A name is that of the script and a number: `recovers-3`."""

    def __init__(self, namespace: Namespace, cluster: testbed.ControlPlane) -> None:
        self.namespace, self._cluster = namespace, cluster
        self.names: list[str] = []
        self._done: set[str] = set()

    async def apply(self, kind: str, number: int = 0) -> None:
        """Apply a job with this script."""
        name = f"{kind}-{number}"
        spec: dict[str, Any] = {"nodes": NUM_NODES}
        if restart := SCRIPTS[kind].restart:
            spec |= {"restart": restart}
        await self.namespace.apply(name, **spec)
        self.names.append(name)

    async def apply_all(self, *numbers: int) -> None:
        """Create one job of each kind for each of these numbers."""
        for number in numbers:
            for kind in SCRIPTS:
                await self.apply(kind, number)

    async def is_created(self, name: str) -> None:
        """Wait until the operator has written that all pods of the job exist."""

        async def written() -> bool:
            status = await self.namespace.status(name)
            return any((c["type"], c["status"]) == ("Created", "True") for c in status.get("conditions", ()))

        await eventually(f"the pods of {name} to be known to exist", written)

    @contextlib.asynccontextmanager
    async def carry_out(self) -> AsyncIterator[None]:
        """Meanwhile, end the pods as their scripts say."""

        async def repeat() -> None:
            while True:
                with contextlib.suppress(ApiError):  # The API server may be down.
                    await self._carry_out()
                await asyncio.sleep(0.1)

        task = asyncio.create_task(repeat())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def end_as_scripted(
        self, seconds: float, *, audit_has_gaps: bool = False, second_writer: bool = False
    ) -> None:
        """Wait for all jobs to end, and compare outcomes, the pods that were ever created, and the pods that are left.

        The audit log has gaps if the API server was killed: it may have stored an object without an entry. A second
        writer with stale caches may create a pod again that was deleted; that pod must be deleted and change nothing.
        """

        async def all_ended() -> bool:
            with contextlib.suppress(ApiError):
                return all([(await self.namespace.status(name)).get("completionTime") for name in self.names])
            return False

        try:
            await eventually("all jobs to end", all_ended, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self._report()}") from error
        found = {name: _outcome(await self.namespace.status(name)) for name in self.names}
        wrong = {name: outcome for name, outcome in found.items() if outcome != SCRIPTS[_kind(name)].outcome}
        assert not wrong, f"these ended otherwise than without faults: {wrong}"
        created, expected = self._created(), self._expected()
        strange, twice, never = created.keys() - expected.keys(), created - expected, expected - created
        assert not strange, f"created, but no script needs them: {strange}"
        assert second_writer or not twice, f"created more often than once: {dict(twice)}"
        assert audit_has_gaps or not never, f"never created: {list(never)}"
        await self._nothing_runs_on(seconds)
        await self._failed_jobs_keep_their_pods()
        await self._nothing_is_an_orphan()

    async def _carry_out(self) -> None:
        pods = await self.namespace.pods()
        running = {name for name, pod in pods.items() if _runs(pod)}
        for name in running - self._done:
            job, attempt, rank = _parts(name)
            gang = {f"{job}-{attempt}-{other}" for other in range(NUM_NODES)}
            ends = SCRIPTS[_kind(job)].ends
            if not gang <= running | self._done or (attempt, rank) not in ends:
                continue
            code = ends[attempt, rank]
            if code is not DELETED:
                await self.namespace.ends(name, code)
            # A pod that is deleted before Created is True counts as one that was never created, and is created again.
            elif (await self.namespace.status(job)).get("phase") == "Running":
                with contextlib.suppress(NotFoundError):
                    await self.namespace.delete_pod(name, grace_seconds=0)
            else:
                continue
            self._done.add(name)

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
            attempts = range(1, SCRIPTS[_kind(name)].outcome.attempt + 1)
            expected.update(("pods", f"{name}-{attempt}-{rank}") for attempt in attempts for rank in range(NUM_NODES))
        return expected

    async def _nothing_runs_on(self, seconds: float) -> None:
        await self.namespace.has_pods(
            "no pod of a job that has ended to run", lambda pods: not any(map(_runs, pods.values())), seconds
        )

    async def _failed_jobs_keep_their_pods(self) -> None:
        """The pods of the last attempt of a failed job are evidence: the survivor is stopped and not deleted."""
        pods = await self.namespace.pods()
        for name in self.names:
            outcome = SCRIPTS[_kind(name)].outcome
            if outcome.phase == "Failed":
                assert {f"{name}-{outcome.attempt}-{rank}" for rank in range(NUM_NODES)} <= pods.keys()

    async def _nothing_is_an_orphan(self) -> None:
        """Each object has an owner; that the garbage collector deletes it with the owner is not waited for."""
        uids = {(await self.namespace.job(name))["metadata"]["uid"] for name in self.names}
        for made in (await self.namespace.pods(), await self.namespace.services()):
            for name, body in made.items():
                assert {owner["uid"] for owner in body["metadata"]["ownerReferences"]} <= uids, name
        for name in self.names:
            await self.namespace.delete_job(name)

    async def _report(self) -> str:
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
