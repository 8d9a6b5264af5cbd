"""Runs the pods of one run on this machine, as kubelets do on the nodes of a cluster."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ddpjob_cli.local.ignored import ignored_parts
from ddpjob_cli.local.listener import Listener
from ddpjob_cli.local.pod import LocalPod
from ddpjob_cli.local.program import Machine, program_of
from ddpjob_cli.local.volumes import mounts_of
from ddpjob_operator.api.names import LABEL_ATTEMPT, LABEL_RANK, LABEL_REPLACEMENT
from ddpjob_operator.core.model import Body, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The directories of a run."""

    run: Path
    """Logs and volumes, which are kept after the run."""
    temporary: Path
    """The pods' /tmp. The path is short, and the directory is deleted at the end of the run."""
    working: Path
    """Working directory of programs."""


class Kubelet:
    """Starts and stops pods and stores their logs."""

    def __init__(
        self,
        machine: Machine,
        folders: Folders,
        config_maps: Iterable[Body],
        listener: Listener,
        followers: asyncio.TaskGroup,
        on_line: Callable[[LocalPod, str], None],
        on_end: Callable[[], None],
    ) -> None:
        """Create one without pods. Tasks of `followers` call `on_line` for each line of a pod and `on_end` when it ends."""
        self._machine = machine
        self._folders = folders
        self._config_maps = tuple(config_maps)
        self._listener = listener
        self._followers = followers
        self._on_line = on_line
        self._on_end = on_end
        self._pods: dict[str, LocalPod] = {}
        self._reported_ignored_parts = False

    async def create(self, body: Body, plain: Body) -> None:
        """Start the pod. `plain` is the pod without its user's settings, from which follows what of these is ignored.

        Raises:
            ValueError: the pod is invalid, and an API server would refuse it.
            OSError: a directory, file or process cannot be created.
        """
        name, labels = body["metadata"]["name"], body["metadata"]["labels"]
        numbers = (labels[label] for label in (LABEL_ATTEMPT, LABEL_RANK, LABEL_REPLACEMENT) if label in labels)
        tmp_folder = self._folders.temporary / "-".join(numbers)
        tmp_folder.mkdir()
        logs = self._folders.run / "logs"
        logs.mkdir(exist_ok=True)
        log, termination_log = logs / f"{name}.log", logs / f"{name}.termination"

        mounts = mounts_of(body, self._config_maps, self._folders.run / "volumes", tmp_folder)
        program = program_of(body, mounts, self._machine, termination_log, self._folders.working)
        program.folder.mkdir(parents=True, exist_ok=True)
        if not self._reported_ignored_parts:
            self._reported_ignored_parts = True
            self._listener.on_ignored(ignored_parts(body, plain, mounts))
        self._listener.on_pod(name, program.command)
        self._pods[name] = await LocalPod.start(body, program, log, termination_log)
        self._followers.create_task(self._pods[name].follow(self._on_line, self._on_end, self._listener.on_note))

    def records(self) -> tuple[Pod, ...]:
        """The records of all pods, except deleted pods that have stopped."""
        self._pods = {name: pod for name, pod in self._pods.items() if not pod.gone}
        return tuple(pod.record() for pod in self._pods.values())

    def pods(self) -> list[Body]:
        """The same pods as an API server would show them."""
        return [pod.as_json() for pod in self._pods.values() if not pod.gone]

    @property
    def all_ended(self) -> bool:
        """Whether all processes of all pods have ended."""
        return all(pod.ended for pod in self._pods.values())

    def delete(self, name: str, grace_seconds: int | None) -> None:
        """Delete the pod. A grace of None is the pod's own grace period."""
        self._pods[name].delete(grace_seconds)

    def lower_deadline(self, name: str) -> None:
        """Stop the pod and keep its record and its log."""
        self._pods[name].lower_deadline()

    def tail(self, name: str, num_bytes: int) -> str:
        """The end of the pod's log."""
        return self._pods[name].tail(num_bytes)

    def stop_all(self) -> None:
        """Stop all pods, each with its own grace period, unless it is being deleted already."""
        for pod in self._pods.values():
            if not pod.deleted:
                pod.delete(None)

    def kill_all(self) -> None:
        """Kill all processes of all pods."""
        for pod in self._pods.values():
            pod.kill()
