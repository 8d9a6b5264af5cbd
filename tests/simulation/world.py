"""One simulated world: a cluster, the operators, a user's job, and a clock that nobody waits for."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from ddpjob_operator.scheduling.none import NO_PROVIDER
from ddpjob_operator.transport.errors import NotFoundError
from simulation.api_server import JOBS, PODS, SERVICES, ApiServer, Body, owner_uid
from simulation.invariants.checker import Checker, Violation
from simulation.invariants.memory import Memory
from simulation.nodes import Cluster, Node
from simulation.operator_process import OperatorProcess
from simulation.program import Programs
from simulation.schedule import Schedule
from simulation.trace import Trace
from simulation.virtual_time import OperatorClocks, VirtualLoop, installed

JOB = "job"
FIRST, SECOND = "first", "second"
#: Seconds until a dead operator is started again.
RESTART_SECONDS = (0.5, 2.0, 10.0)


class World:
    """Everything, and what can be done to it. `run` in `simulation.runner` leads it through a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.random = Random(schedule.seed)  # noqa: S311 a simulation must be repeatable
        self.loop = VirtualLoop(self._task_made)
        self.loop.set_exception_handler(self._model_failed)
        self.clocks = OperatorClocks(self.loop)
        self.server = ApiServer(self.clocks)
        self.counts: Counter[str] = Counter()
        self.violation: Violation | None = None
        self._alarm: asyncio.Future[None] | None = None
        self.operators: dict[str, OperatorProcess] = {}
        """The living ones, by their place."""
        self.processes: list[OperatorProcess] = []
        self._by_name: dict[str, OperatorProcess] = {}
        self._offset_seconds = dict.fromkeys((FIRST, SECOND), 0.0)
        self.calm = False
        """Whether the disturbances are over."""
        self.trace = Trace(self)
        self.server.observers.append(self.trace)
        self.programs = Programs(
            self.server,
            self.random,
            list(schedule.fates),
            train_seconds=schedule.train_seconds,
            sigterm=schedule.sigterm,
        )
        nodes = {
            name: Node(name=name, places=schedule.places)
            for name in (f"node-{number}" for number in range(schedule.num_machines))
        }
        self.cluster = Cluster(server=self.server, programs=self.programs, random=self.random, nodes=nodes)
        self.memory = Memory(self)
        self.server.observers.append(Checker(self.memory))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """With the operator's clocks and logs replaced; at the end nothing of this world is left."""
        logger = logging.getLogger("ddpjob_operator")
        handler = _Defects(self.fail)
        level, propagate = logger.level, logger.propagate
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        logger.addHandler(handler)
        try:
            with installed(self.clocks, self.schedule.seed):
                yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
            self._close()

    def _close(self) -> None:
        for place in list(self.operators):
            self.stop_operator(place)
        tasks = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    # --- Time -----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The loop's clock."""
        return self.loop.time()

    def later(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        """Do something by itself, in a while."""
        self.loop.call_later(seconds, call, *arguments)

    async def sleep(self, seconds: float) -> None:
        """Let the world live on. Raises Violation as soon as there is one."""
        if self.violation is None:
            self._alarm = self.loop.create_future()
            timer = self.loop.call_later(seconds, self._ring)
            await self._alarm
            timer.cancel()
        if self.violation is not None:
            raise self.violation

    async def wait_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Let the world live on until something holds, for so long at most. Gives whether it does."""
        deadline = self.now() + seconds
        while not holds():
            if self.now() >= deadline:
                return False
            await self.sleep(5.0)
        return True

    def fail(self, message: str) -> None:
        """End the schedule with this violation; the first one counts."""
        if self.violation is None:
            self.violation = Violation(message)
            self._ring()

    def _ring(self) -> None:
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    def _model_failed(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:  # noqa: ARG002
        error = context.get("exception")
        if error is not None:
            self.fail(f"the simulation itself has failed: {error!r}")
            assert self.violation is not None
            self.violation.__cause__ = error

    # --- Operators ----------------------------------------------------------------------------------------------------

    def start_operator(self, place: str) -> None:
        """A new process: empty memory, and its machine's clock."""
        if place in self.operators:
            return
        process = OperatorProcess(
            f"operator-{len(self.processes) + 1}",
            self.server,
            Random(self.random.random()),  # noqa: S311 a simulation must be repeatable
            self._log_of,
            progress_interval_seconds=10.0 if self.schedule.reads_progress else 0.0,
            fault_percent=0 if self.calm else self.schedule.fault_percent,
            provider=NativeV1Alpha2() if self.schedule.gangs else NO_PROVIDER,
            died=self._operator_died,
        )
        self.operators[place] = process
        self.processes.append(process)
        self._by_name[process.name] = process
        self.clocks.offset_seconds[process.name] = self._offset_seconds[place]
        self.counts[f"{place} operator started"] += 1
        process.start()

    def stop_operator(self, place: str) -> None:
        """SIGKILL, and it does not come back."""
        process = self.operators.pop(place, None)
        if process is not None:
            process.kill()

    def _operator_died(self, process: OperatorProcess) -> None:
        place = next((place for place, running in self.operators.items() if running is process), None)
        if place is None:
            return
        del self.operators[place]
        if not self.calm or place == FIRST:
            self.counts["crash"] += 1
            self.later(self.random.choice(RESTART_SECONDS), self.start_operator, place)

    def jump_clock(self, seconds: float) -> None:
        """Set the wall clock of the first operator's machine."""
        self.memory.clock_jumped_at = self.now()
        self._offset_seconds[FIRST] += seconds
        if FIRST in self.operators:
            self.clocks.offset_seconds[self.operators[FIRST].name] += seconds
        self.counts["clock jump"] += 1

    def num_write_calls(self) -> int:
        """Requests of all operators so far that ask for a change."""
        return sum(process.num_write_calls for process in self.processes)

    def _task_made(self, process: str, task: asyncio.Task[Any]) -> None:
        if process:
            self._by_name[process].tasks.append(task)

    def _log_of(self, pod: str) -> str:
        body = self.server.get(PODS, pod)
        sandbox = self.cluster.sandboxes.get(body["metadata"]["uid"])
        if sandbox is None:
            raise NotFoundError(f"log {pod}", "the container has not started", status=400)
        return self.programs.log_of(sandbox.main)

    # --- The user -------------------------------------------------------------------------------------------------

    def job(self) -> Body | None:
        """The job as the API server holds it."""
        return self.server.find(JOBS, JOB)

    def status(self) -> Body:
        """Its status, empty before the first."""
        job = self.job()
        return (job.get("status") or {}) if job else {}

    def apply_job(self) -> None:
        """With `kubectl apply`."""
        body = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": JOB}}
        self.server.create(JOBS, {**body, "spec": self._spec()}, "user")

    def delete_job(self) -> None:
        """With `kubectl delete`."""
        job = self.job()
        if job is not None:
            self.server.remove(JOBS, job["metadata"]["uid"], "user")

    def patch_spec(self, patch: Body) -> None:
        """With `kubectl patch`."""
        if self.job() is not None:
            self.server.merge_patch(JOBS, JOB, {"spec": patch}, None, "user")

    def _spec(self) -> dict[str, Any]:
        schedule = self.schedule
        deadlines: dict[str, int] = {
            "startSeconds": schedule.start_seconds,
            "hangSeconds": schedule.hang_seconds,
            "finishSeconds": schedule.finish_seconds,
        }
        if schedule.min_nodes is not None:
            deadlines |= {"fullSizeSeconds": schedule.full_size_seconds, "fewerNodesSeconds": 20}
        if schedule.queue_seconds is not None:
            deadlines["queueSeconds"] = schedule.queue_seconds
        if schedule.active_seconds is not None:
            deadlines["activeSeconds"] = schedule.active_seconds
        restart: dict[str, Any] = {"maxRestarts": schedule.max_restarts, "keepAttempts": schedule.keep_attempts}
        if schedule.in_place:
            restart["inPlace"] = True
        if schedule.ignored_exit_code is not None:
            restart["rules"] = [{"exitCodes": [schedule.ignored_exit_code], "action": "Ignore"}]
        containers = [{"name": "sidecar", "image": "logs:1"}] if schedule.sidecar else []
        pod_spec: dict[str, Any] = {"terminationGracePeriodSeconds": schedule.own_grace_seconds}
        if containers:
            pod_spec["containers"] = containers
        spec: dict[str, Any] = {
            "nodes": schedule.nodes,
            **({"minNodes": schedule.min_nodes} if schedule.min_nodes is not None else {}),
            "restart": restart,
            "deadlines": deadlines,
            "template": {"spec": pod_spec},
        }
        if schedule.ttl_seconds is not None:
            spec["ttlSecondsAfterFinished"] = schedule.ttl_seconds
        program = {"trainer": {"recipe": "digits"}} if schedule.trainer else {"command": ["torchrun", "train.py"]}
        return spec | program

    # --- The surroundings -----------------------------------------------------------------------------------------

    def free_nodes(self) -> None:
        """Pods fit again."""
        for node in self.cluster.nodes.values():
            node.places = self.schedule.places
        self.later(0.1, self.cluster.look_for_places)

    def strangers(self) -> list[tuple[str, Body]]:
        """Pods and Services that are nobody's."""
        return [
            (plural, body) for plural in (PODS, SERVICES) for body in self.server.all(plural) if not owner_uid(body)
        ]

    def remove_strangers(self) -> None:
        """Their names are free again."""
        for plural, body in self.strangers():
            self.server.remove(plural, body["metadata"]["uid"], "user")

    def heal(self) -> None:
        """Nothing is missing, full, broken or in the way any more."""
        self.server.pod_quota = None
        self.server.webhook_is_broken = False
        self.cluster.image_is_missing = False
        self.cluster.refuses_pods = False
        self.remove_strangers()
        for node in self.cluster.nodes.values():
            self.cluster.start_kubelet(node)
        self.cluster.restore_nodes()
        self.free_nodes()
        self.programs.release()


class _Defects(logging.Handler):
    """What the operator logs as an error is a defect of the operator: a simulated world gives it no other cause."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._fail = fail
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._fail(f"the operator has logged an error: {self.format(record)}")
