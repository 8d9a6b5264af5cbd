"""Runs a DDPJob on this machine with the same decisions and the same pods as on a cluster; each pod is a process.

This module is the loop around `plan`: it holds the job and its Service as objects, carries out the actions and lookups
of a plan, and waits for the next change. The only decision of its own is when the run is over.
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

from ddpjob_cli.local.gpus import gpus_for
from ddpjob_cli.local.ignored import plain_pod
from ddpjob_cli.local.kubelet import Folders, Kubelet
from ddpjob_cli.local.listener import Listener
from ddpjob_cli.local.pod import LocalPod
from ddpjob_cli.local.port import reserved_port
from ddpjob_cli.local.program import Machine
from ddpjob_operator.api.names import contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Progress
from ddpjob_operator.core.actions import (
    Action,
    CreateObject,
    CreatePod,
    DeleteJob,
    DeletePod,
    DeletePods,
    Lookup,
    LowerPodDeadline,
    PatchObject,
    ReadLog,
)
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.model import Body, Job, LogEnd, Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.progress import latest_progress, position
from ddpjob_operator.core.records import service_of

#: The image in the status of a job without an image: the Python of this machine.
LOCAL_IMAGE = "local"
#: So much of a log is read to find the cause of a failure: a line of megabytes, such as a tensor, may follow the traceback.
LOG_TAIL_BYTES = 8 * 1024 * 1024
#: The loop plans at least this often, although every change wakes it, and it waits at least BREATH_SECONDS.
AUDIT_SECONDS = 30.0
BREATH_SECONDS = 0.02


class LocalRun:
    """One run of one job. Logs and volumes are stored in `folder`. Programs start in the current directory."""

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
            ValueError: this machine cannot run the job; the text says what to change.
        """
        self._gpus = gpus_for(spec, os.environ)
        self._spec = spec
        self._config_maps = tuple(config_maps)
        self._folder = folder
        self._listener = listener
        self._job = Job(
            namespace=namespace,
            name=name,
            uid=str(uuid.uuid4()),
            resource_version="1",
            generation=1,
            deleting=False,
            spec=spec,
        )
        self.pods: list[Body] = []
        """The pods that the job has, or still had at the end, as an API server would show them."""
        self._service: dict[str, Any] | None = None
        self._logs: dict[str, LogEnd] = {}
        self._progress: tuple[int, Progress] | None = None
        self._last_news_at = time.monotonic()  # when rank 0 started, or last reported new progress
        self._num_interruptions = 0
        self._changed = asyncio.Event()

    @property
    def status(self) -> DDPJobStatus:
        """The status of the job, as on a cluster."""
        return self._job.status

    def interrupt(self) -> None:
        """End the run. The first call stops all programs with their grace periods, the second one kills them."""
        self._num_interruptions += 1
        self._changed.set()

    async def run(self) -> None:
        """Run the job until it ends or is interrupted. No process is left afterwards.

        Raises:
            ValueError: a pod cannot run on this machine, for example because of a mistake in the template's volumes.
            OSError: a directory, file or process cannot be created.
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
                except (ValueError, OSError) as error:  # raised below, so that it is not wrapped in an exception group
                    mistake = error
                finally:
                    self.pods = kubelet.pods()
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
                self.pods = kubelet.pods()
                decision = plan(self._observed(kubelet), time.time())
                self._store(decision.status)
                if decision.write_ahead:
                    continue
                for action in decision.actions:
                    if not self._num_interruptions:
                        await self._carry_out(action, kubelet)
                self._look_up(decision.lookups, kubelet)
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
            one_machine=True,
            service=service_of(self._service) if self._service else None,
            logs=self._logs,
            progress=progress if attempt == self.status.attempt else None,
            silent_seconds=time.monotonic() - self._last_news_at,
        )

    def _store(self, status: DDPJobStatus) -> None:
        if status != self.status:
            self._job = replace(self._job, status=status)
            self._listener.on_status(status)
            self._changed.set()

    async def _carry_out(self, action: Action, kubelet: Kubelet) -> None:
        self._changed.set()  # plan again with the result
        match action:
            case CreatePod():
                await kubelet.create(action.body, plain_pod(self._job, self._spec, LOCAL_IMAGE))
                self._last_news_at = time.monotonic()
            case DeletePod():
                kubelet.delete(action.name, action.grace_seconds)
            case DeletePods():
                for pod in kubelet.records():
                    if action.attempt in (None, pod.attempt):
                        kubelet.delete(pod.name, None)
            case LowerPodDeadline():
                kubelet.lower_deadline(action.name)
            case CreateObject():
                metadata = {**action.body["metadata"], "uid": str(uuid.uuid4()), "resourceVersion": "1"}
                self._service = {**action.body, "metadata": metadata}
            case PatchObject():
                assert self._service is not None, "plan has observed the Service"
                self._service = _merged(self._service, action.patch)
            case DeleteJob():
                self._job = replace(self._job, deleting=True)

    def _look_up(self, lookups: Iterable[Lookup], kubelet: Kubelet) -> None:
        """Read the tails of logs. Lookups of nodes need no answer, because the only node is this machine."""
        for lookup in lookups:
            if isinstance(lookup, ReadLog):
                self._logs[lookup.uid] = end_of_log(kubelet.tail(lookup.pod, LOG_TAIL_BYTES))
                self._changed.set()

    def _on_line(self, pod: LocalPod, text: str) -> None:
        """Handle a line that a pod printed; it may be the progress of rank 0."""
        self._listener.on_line(pod.rank, text)
        if pod.rank == 0 and contract.PROGRESS_PREFIX in text and (progress := latest_progress(text)):
            known = self._progress and (self._progress[0], position(self._progress[1]))
            if known != (pod.attempt, position(progress)):
                self._last_news_at = time.monotonic()
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
