"""A DDPJob on this machine: the same decisions and the same pods as on a cluster, each pod a process.

What stands here is what stands around `plan` on a cluster: the job and its Service as objects, the doing of what `plan`
asks for, and the waiting for something to happen. There is no decision of its own but when the run is over.
"""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ddpjob_operator.api.names import contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Progress
from ddpjob_operator.core.model import (
    Action,
    Body,
    CreatePod,
    CreateService,
    DeleteJob,
    DeletePod,
    DeletePods,
    Job,
    Lookup,
    LowerPodDeadline,
    Observed,
    PatchService,
    ReadLog,
)
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.progress import latest_progress
from ddpjob_operator.core.records import service_of
from ddpjob_operator.local.gpus import gpus_for
from ddpjob_operator.local.kubelet import Folders, Kubelet
from ddpjob_operator.local.listener import Listener
from ddpjob_operator.local.pod import LocalPod
from ddpjob_operator.local.port import reserved_port
from ddpjob_operator.local.program import Machine

#: What status shows as the image of a job that names none: this machine's own Python.
LOCAL_IMAGE = "local"
#: As much of a log as the operator reads to find the cause of a failure.
LOG_TAIL_BYTES = 64 * 1024
#: Look again after this long at the latest, although every change wakes the loop; and never sooner than a breath.
AUDIT_SECONDS = 30.0
BREATH_SECONDS = 0.02


class LocalRun:
    """One run of one job. It keeps logs and volumes in `folder`, and its programs start in the current one."""

    def __init__(
        self,
        namespace: str,
        name: str,
        spec: DDPJobSpec,
        config_maps: Iterable[Body],
        folder: Path,
        listener: Listener,
    ) -> None:
        """Check that this machine can run the job.

        Raises:
            ValueError: if it cannot; the text says what to change.
        """
        self._gpus = gpus_for(spec, os.environ)
        self._config_maps = tuple(config_maps)
        self._folder = folder
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
        self._logs: dict[str, str] = {}
        self._progress: tuple[int, Progress] | None = None
        self._heard_at = time.monotonic()  # when rank 0 began, or said something new, last
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
            OSError: a folder, file or process cannot be made.
        """
        with reserved_port() as port, TemporaryDirectory(prefix="ddpjob-", ignore_cleanup_errors=True) as temporary:
            machine = Machine(
                python=Path(sys.executable),
                environ=os.environ,
                num_cpus=len(os.sched_getaffinity(0)),
                master_port=port,
                gpus=self._gpus,
            )
            folders = Folders(run=self._folder, temporary=Path(temporary), working=Path.cwd())
            mistake: ValueError | OSError | None = None
            async with asyncio.TaskGroup() as followers:
                kubelet = Kubelet(
                    machine, folders, self._config_maps, self._listener, followers, self._on_line, self._changed.set
                )
                try:
                    await self._drive(kubelet)
                except (ValueError, OSError) as error:  # raised below, as it is and not in a group
                    mistake = error
                finally:
                    kubelet.kill_all()
            if mistake is not None:
                raise mistake

    async def _drive(self, kubelet: Kubelet) -> None:
        """Plan and act until the job is over and all processes have ended."""
        while not (self._is_over and kubelet.all_ended):
            self._changed.clear()
            wake_at = None
            if self._num_interruptions > 1:
                kubelet.kill_all()
            elif self._num_interruptions == 1:
                kubelet.stop_all()
            else:
                decision = plan(self._observed(kubelet), time.time())
                self._store(decision.status)
                if decision.write_ahead:
                    continue
                for action in decision.actions:
                    if not self._num_interruptions:
                        await self._carry_out(action, kubelet)
                self._answer(decision.lookups, kubelet)
                wake_at = decision.wake_at
            await self._something_happens(wake_at)

    @property
    def _is_over(self) -> bool:
        return self._num_interruptions > 0 or self._job.deleting or self.status.finished

    def _observed(self, kubelet: Kubelet) -> Observed:
        attempt, progress = self._progress or (0, None)
        return Observed(
            job=self._job,
            pods=kubelet.records(),
            trainer_image=LOCAL_IMAGE,
            service=service_of(self._service) if self._service else None,
            logs=self._logs,
            progress=progress if attempt == self.status.attempt else None,
            silent_seconds=time.monotonic() - self._heard_at,
        )

    def _store(self, status: DDPJobStatus) -> None:
        if status != self.status:
            self._job = replace(self._job, status=status)
            self._listener.on_status(status)
            self._changed.set()

    async def _carry_out(self, action: Action, kubelet: Kubelet) -> None:
        self._changed.set()  # look at what it leads to
        match action:
            case CreatePod():
                await kubelet.create(action.body)
                self._heard_at = time.monotonic()
            case DeletePod():
                kubelet.delete(action.name, action.grace_seconds)
            case DeletePods():
                for pod in kubelet.records():
                    if action.attempt in (None, pod.attempt):
                        kubelet.delete(pod.name, None)
            case LowerPodDeadline():
                kubelet.lower_deadline(action.name)
            case CreateService():
                metadata = {**action.body["metadata"], "uid": str(uuid.uuid4()), "resourceVersion": "1"}
                self._service = {**action.body, "metadata": metadata}
            case PatchService():
                assert self._service is not None, "a Service that was seen is there"
                self._service = _merged(self._service, action.patch)
            case DeleteJob():
                self._job = replace(self._job, deleting=True)

    def _answer(self, questions: Iterable[Lookup], kubelet: Kubelet) -> None:
        """The tails of logs; a node is never gone, since the only one is this machine."""
        for question in questions:
            if isinstance(question, ReadLog):
                self._logs[question.uid] = kubelet.tail(question.pod, LOG_TAIL_BYTES)
                self._changed.set()

    def _on_line(self, pod: LocalPod, text: str) -> None:
        """A pod printed a line, which may be rank 0's progress."""
        self._listener.on_line(pod.rank, text)
        if pod.rank == 0 and contract.PROGRESS_PREFIX in text and (progress := latest_progress(text)):
            said = self._progress and (self._progress[0], self._progress[1].step, self._progress[1].phase)
            if said != (pod.attempt, progress.step, progress.phase):
                self._heard_at = time.monotonic()
            self._progress = (pod.attempt, progress)
            self._changed.set()

    async def _something_happens(self, wake_at: float | None) -> None:
        until_wake = AUDIT_SECONDS if wake_at is None else wake_at - time.time()
        timeout = max(BREATH_SECONDS, min(AUDIT_SECONDS, until_wake))
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
