"""The pods of one run on this machine: what the nodes of a cluster are to the operator."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ddpjob_operator.api.names import LABEL_ATTEMPT, LABEL_RANK
from ddpjob_operator.core.model import Body, Pod
from ddpjob_operator.local.ignored import ignored_parts
from ddpjob_operator.local.listener import Listener
from ddpjob_operator.local.pod import LocalPod
from ddpjob_operator.local.program import Machine, program_of
from ddpjob_operator.local.volumes import mounts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a run keeps what it makes, and where its programs start."""

    run: Path
    """Logs and volumes; they stay."""
    temporary: Path
    """What pods see as /tmp; a short path, gone with the run."""
    working: Path
    """Where programs start."""


class Kubelet:
    """Starts pods, keeps their logs, stops them."""

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
        """Pods are followed in tasks of `followers`, which call `on_line` for each line and `on_end` for each end."""
        self._machine = machine
        self._folders = folders
        self._config_maps = tuple(config_maps)
        self._listener = listener
        self._followers = followers
        self._on_line = on_line
        self._on_end = on_end
        self._pods: dict[str, LocalPod] = {}
        self._told_what_is_ignored = False

    async def create(self, body: Body) -> None:
        """Start the pod.

        Raises:
            ValueError: it contradicts itself in a way that an API server would refuse.
            OSError: a folder, file or process cannot be made.
        """
        name, labels = body["metadata"]["name"], body["metadata"]["labels"]
        tmp_folder = self._folders.temporary / f"{labels[LABEL_ATTEMPT]}-{labels[LABEL_RANK]}"
        tmp_folder.mkdir()
        logs = self._folders.run / "logs"
        logs.mkdir(exist_ok=True)
        log, termination_log = logs / f"{name}.log", logs / f"{name}.termination"

        mounts = mounts_of(body, self._config_maps, self._folders.run / "volumes", tmp_folder)
        program = program_of(body, mounts, self._machine, termination_log, self._folders.working)
        program.folder.mkdir(parents=True, exist_ok=True)
        if not self._told_what_is_ignored:
            self._told_what_is_ignored = True
            self._listener.on_ignored(ignored_parts(body, mounts))
        self._listener.on_pod(name, program.command)
        self._pods[name] = await LocalPod.start(body, program, log, termination_log)
        self._followers.create_task(self._pods[name].follow(self._on_line, self._on_end))

    def records(self) -> tuple[Pod, ...]:
        """All pods but those that were deleted and have stopped, as decisions see them."""
        self._pods = {name: pod for name, pod in self._pods.items() if not pod.gone}
        return tuple(pod.record() for pod in self._pods.values())

    @property
    def all_ended(self) -> bool:
        """Whether no process of any pod is left."""
        return all(pod.ended for pod in self._pods.values())

    def delete(self, name: str, grace_seconds: int | None) -> None:
        """Stop the pod; None is its own grace."""
        self._pods[name].delete(grace_seconds)

    def lower_deadline(self, name: str) -> None:
        """Stop the pod and keep it, as failed."""
        self._pods[name].lower_deadline()

    def tail(self, name: str, num_bytes: int) -> str:
        """The end of the pod's log."""
        return self._pods[name].tail(num_bytes)

    def stop_all(self) -> None:
        """Ask every program that was not asked yet to save its work and end, each within its own grace."""
        for pod in self._pods.values():
            if not pod.deleted:
                pod.delete(None)

    def kill_all(self) -> None:
        """End every process at once."""
        for pod in self._pods.values():
            pod.kill()
