"""A DDPJob on this machine: the same decisions and the same pods as on a cluster, each pod a process.

What stands here is what stands around `plan` on a cluster: a store of objects, the doing of what it asks for, and the
waiting for something to happen. There is no decision of its own but when the run is over.
"""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from ddpjob_operator.api import names
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Progress
from ddpjob_operator.core.model import (
    Action,
    Body,
    CreatePod,
    CreateService,
    DeleteJob,
    DeletePod,
    Job,
    LowerPodDeadline,
    Observed,
    PatchService,
    Question,
    ReadLog,
)
from ddpjob_operator.core.observed import service_of
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.progress import latest_progress
from ddpjob_operator.local.gpus import gpus_for
from ddpjob_operator.local.ignored import ignored_parts
from ddpjob_operator.local.pod import LocalPod
from ddpjob_operator.local.port import reserved_port
from ddpjob_operator.local.program import Machine, program_of
from ddpjob_operator.local.volumes import mounts_of

#: What status shows as the image of a job that names none: this machine's own Python.
LOCAL_IMAGE = "local"
#: As much of a log as the operator reads to find the cause of a failure.
LOG_TAIL_BYTES = 64 * 1024
#: Look again after this long at the latest, although every change wakes the loop.
AUDIT_SECONDS = 30.0


class Listener(Protocol):
    """Who watches a run."""

    def on_ignored(self, parts: tuple[str, ...]) -> None:
        """Once, at the first pod: what of it this machine ignores."""

    def on_pod(self, name: str, command: tuple[str, ...]) -> None:
        """A pod starts."""

    def on_line(self, rank: int, text: str) -> None:
        """The pod of this node rank printed a line. It is untrusted text."""

    def on_status(self, status: DDPJobStatus) -> None:
        """The job's status has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a run keeps what it makes."""

    run: Path
    """Logs and volumes; they stay."""
    working: Path
    """Where programs start."""

    @property
    def logs(self) -> Path:
        """One file for each pod."""
        return self.run / "logs"

    @property
    def volumes(self) -> Path:
        """One folder for each volume that this machine lacks."""
        return self.run / "volumes"


class LocalRun:
    """One run of one job."""

    def __init__(
        self,
        namespace: str,
        name: str,
        spec: DDPJobSpec,
        config_maps: Iterable[Body],
        folders: Folders,
        listener: Listener,
    ) -> None:
        """Check that this machine can run the job.

        Raises:
            ValueError: if it cannot; the text says what to change.
        """
        self._gpus = gpus_for(spec, os.environ)
        self._config_maps = tuple(config_maps)
        self._folders = folders
        self._listener = listener
        self._job = Job(
            namespace=namespace,
            name=name,
            uid=str(uuid.uuid4()),
            resource_version="1",
            generation=1,
            created=time.time(),
            deleting=False,
            spec=spec,
        )
        self._service: dict[str, Any] | None = None
        self._pods: dict[str, LocalPod] = {}
        self._logs: dict[str, str] = {}
        self._progress: tuple[int, Progress] | None = None
        self._ignored_told = False
        self._num_interruptions = 0
        self._changed = asyncio.Event()

    @property
    def status(self) -> DDPJobStatus:
        """What a cluster would show."""
        return self._job.status

    def interrupt(self) -> None:
        """End the run: at the first call every program has its grace to save its work, at the second none."""
        self._num_interruptions += 1
        self._changed.set()

    async def run(self) -> None:
        """Run the job to its end, or to an interruption; no process is left then.

        Raises:
            ValueError: a pod cannot be made on this machine, for example for a mistake in the template's volumes.
        """
        with reserved_port() as port, TemporaryDirectory(prefix="ddpjob-", ignore_cleanup_errors=True) as tmp_folder:
            self._folders.logs.mkdir(parents=True)
            machine = Machine(
                python=Path(sys.executable),
                environ=os.environ,
                num_cpus=len(os.sched_getaffinity(0)),
                master_port=port,
                gpus=self._gpus,
            )
            mistake: ValueError | None = None
            async with asyncio.TaskGroup() as followers:
                try:
                    await self._drive(machine, Path(tmp_folder), followers)
                except ValueError as error:  # as it is, not in the group's exception
                    mistake = error
                finally:
                    for pod in self._pods.values():
                        pod.kill()
            if mistake is not None:
                raise mistake

    async def _drive(self, machine: Machine, tmp_folder: Path, followers: asyncio.TaskGroup) -> None:
        """Plan and act until the job is over and all processes have ended."""
        while not self._over():
            self._changed.clear()
            self._forget_gone_pods()
            wake_at = None
            if self._num_interruptions:
                self._stop_pods()
            else:
                decision = plan(self._observed(), time.time())
                self._store(decision.status)
                if decision.write_ahead:
                    continue
                await self._carry_out(decision.actions, machine, tmp_folder, followers)
                self._answer(decision.questions)
                wake_at = decision.wake_at
            await self._something_happens(wake_at)

    def _over(self) -> bool:
        finished = self._num_interruptions > 0 or self._job.deleting or self.status.finished
        return finished and all(pod.ended for pod in self._pods.values())

    def _observed(self) -> Observed:
        return Observed(
            job=self._job,
            pods=tuple(pod.record() for pod in self._pods.values()),
            trainer_image=LOCAL_IMAGE,
            service=service_of(self._service) if self._service else None,
            logs=self._logs,
            progress=self._progress[1] if self._progress and self._progress[0] == self.status.attempt else None,
        )

    def _store(self, status: DDPJobStatus) -> None:
        if status != self.status:
            self._job = replace(self._job, status=status)
            self._listener.on_status(status)
            self._changed.set()

    def _stop_pods(self) -> None:
        for pod in self._pods.values():
            if self._num_interruptions > 1:
                pod.kill()
            elif not pod.deleted:
                pod.delete(None)

    async def _carry_out(
        self, actions: Iterable[Action], machine: Machine, tmp_folder: Path, followers: asyncio.TaskGroup
    ) -> None:
        for action in actions:
            if self._num_interruptions:
                return
            self._changed.set()  # look at the outcome of every action
            if isinstance(action, CreatePod):
                await self._create_pod(action, machine, tmp_folder, followers)
            else:
                self._act(action)

    def _act(self, action: DeletePod | LowerPodDeadline | CreateService | PatchService | DeleteJob) -> None:
        match action:
            case DeletePod():
                self._pods[action.name].delete(action.grace_seconds)
            case LowerPodDeadline():
                self._pods[action.name].lower_deadline()
            case CreateService():
                metadata = {**action.body["metadata"], "uid": str(uuid.uuid4()), "resourceVersion": "1"}
                self._service = {**action.body, "metadata": metadata}
            case PatchService():
                assert self._service is not None, "a Service that was seen is there"
                self._service = _merged(self._service, action.patch)
            case DeleteJob():
                self._job = replace(self._job, deleting=True)

    async def _create_pod(
        self, action: CreatePod, machine: Machine, tmp_folder: Path, followers: asyncio.TaskGroup
    ) -> None:
        labels = action.body["metadata"]["labels"]
        own_tmp_folder = tmp_folder / f"{labels[names.LABEL_ATTEMPT]}-{labels[names.LABEL_RANK]}"
        own_tmp_folder.mkdir()
        mounts = mounts_of(action.body, self._config_maps, self._folders.volumes, own_tmp_folder)
        if not self._ignored_told:
            self._ignored_told = True
            self._listener.on_ignored(ignored_parts(action.body, mounts))
        log, termination_log = (self._folders.logs / f"{action.name}{suffix}" for suffix in (".log", ".termination"))
        program = program_of(action.body, mounts, machine, termination_log, self._folders.working)
        self._listener.on_pod(action.name, program.command)
        pod = await LocalPod.start(action.body, program, log, termination_log)
        self._pods[action.name] = pod
        followers.create_task(pod.follow(self._on_line, self._changed.set))

    def _on_line(self, pod: LocalPod, text: str) -> None:
        self._listener.on_line(pod.rank, text)
        if pod.rank == 0 and names.contract.PROGRESS_PREFIX in text and (progress := latest_progress(text)):
            self._progress = (pod.attempt, progress)
            self._changed.set()

    def _answer(self, questions: Iterable[Question]) -> None:
        """The tails of logs; a node is never gone, since the only one is this machine."""
        for question in questions:
            if isinstance(question, ReadLog):
                self._logs[question.uid] = self._pods[question.pod].tail(LOG_TAIL_BYTES)
                self._changed.set()

    def _forget_gone_pods(self) -> None:
        self._pods = {name: pod for name, pod in self._pods.items() if not pod.gone}

    async def _something_happens(self, wake_at: float | None) -> None:
        timeout = AUDIT_SECONDS if wake_at is None else min(AUDIT_SECONDS, max(0.0, wake_at - time.time()))
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with a JSON merge patch (RFC 7396) applied."""
    merged = {key: value for key, value in base.items() if patch.get(key, value) is not None}
    for key, value in patch.items():
        if isinstance(value, Mapping):
            merged[key] = _merged(merged.get(key) or {}, value)
        elif value is not None:
            merged[key] = value
    return merged
