"""Runs one pod as a process, as kubelet and container runtime do on a cluster.

The program is started as a child of a reaper. Its output is stored as the pod's log, and the pod's status has the form
that it has in the API.
"""

import asyncio
import os
import signal
import sys
import time
import uuid
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpjob_cli.local import reaper
from ddpjob_cli.local.program import Program
from ddpjob_operator.api import names
from ddpjob_operator.core.model import Body, Pod
from ddpjob_operator.core.records import pod_of
from ddpjob_operator.core.times import rfc3339

#: Grace period of a pod that does not set one: the default of Kubernetes.
DEFAULT_GRACE_SECONDS = 30
#: Sizes to which a kubelet truncates a termination message, and a log that replaces it.
TERMINATION_MESSAGE_BYTES = 4096
FALLBACK_LOG_BYTES = 2048
#: Longer lines are split, so that the output of programs cannot use up the memory.
MAX_LINE_BYTES = 16 * 1024
#: So much of the output is kept in memory, for the cause of a failure where the log cannot be written.
RECENT_BYTES = 64 * 1024


class LocalPod:
    """One pod and its process. `start` starts it, and a task has to await `follow`."""

    def __init__(self, body: Body, process: Process, log: Path, termination_log: Path) -> None:
        self._body = body
        self._process = process
        self._log = log
        self._termination_log = termination_log
        self._recent = b""
        """The end of what the program printed."""
        self._log_is_lost = False
        self._exit: dict[str, Any] | None = None
        self._ended_at: float | None = None
        self._deletion_deadline: float | None = None
        self._deadline_exceeded = False
        self.name: str = body["metadata"]["name"]
        self.uid: str = body["metadata"]["uid"]
        self.attempt = int(body["metadata"]["labels"][names.LABEL_ATTEMPT])
        self.rank = int(body["metadata"]["labels"][names.LABEL_RANK])

    @classmethod
    async def start(cls, body: Body, program: Program, log: Path, termination_log: Path) -> "LocalPod":
        """Start the pod's program. If the program cannot be started, the pod ends with exit code 128."""
        with suppress(OSError):  # a full disk ends no training; the message is then the end of the output
            termination_log.touch()  # noqa: ASYNC240 - a local file: microseconds
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", reaper.__file__),
            *program.command,
            env=program.environ,
            cwd=program.folder,
            stdin=PIPE,  # closing it, as the end of this process does, kills all processes of the pod
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,  # so that Ctrl-C and signals to our process group do not reach it
        )
        metadata = {**body["metadata"], "uid": str(uuid.uuid4())}
        spec = {**body["spec"], "nodeName": os.uname().nodename}
        return cls({**body, "metadata": metadata, "spec": spec}, process, log, termination_log)

    async def follow(
        self,
        on_line: Callable[["LocalPod", str], None],
        on_end: Callable[[], None],
        on_note: Callable[[str], None] = lambda text: None,  # noqa: ARG005
    ) -> None:
        """Store the log and pass its lines to `on_line` until the program ends.

        A log that cannot be written, as on a full disk, ends no training: what does not fit is lost, and `on_note` gets a sentence.
        """
        assert self._process.stdout is not None, "started with a pipe"

        def keep(chunk: bytes) -> None:
            self._recent = (self._recent + chunk)[-RECENT_BYTES:]
            try:
                with self._log.open("ab", buffering=0) as log:
                    log.write(chunk)
            except OSError as error:
                if not self._log_is_lost:
                    on_note(
                        f"{self._log} cannot be written ({error.strerror}): the training continues, and what it prints from now on is"
                        " not kept; free space to keep it"
                    )
                self._log_is_lost = True

        async for line in _lines(self._process.stdout, keep):
            on_line(self, line)
        code = await self._process.wait()
        code = code if code >= 0 else 128 - code  # the reaper itself was killed
        self._ended_at = time.time()
        message = self._termination_message(code)
        never_ran = code == reaper.CANNOT_START and message.startswith(reaper.NO_START)
        self._exit = {
            "exitCode": code,
            "reason": "StartError" if never_ran else "Error" if code else "Completed",
            "message": message,
            "finishedAt": rfc3339(self._ended_at),
        }
        on_end()

    @property
    def ended(self) -> bool:
        """Whether all its processes have ended."""
        return self._exit is not None

    @property
    def deleted(self) -> bool:
        """Whether its deletion was requested."""
        return self._deletion_deadline is not None

    @property
    def gone(self) -> bool:
        """Whether the API would not list it any more: it was deleted and has stopped."""
        return self.ended and self.deleted

    def delete(self, grace_seconds: int | None) -> None:
        """Stop the program and kill it after the grace period (None: the pod's own)."""
        grace = self._own_grace if grace_seconds is None else grace_seconds
        self._deletion_deadline = min(self._deletion_deadline or float("inf"), time.time() + grace)
        self._stop(grace)

    def lower_deadline(self) -> None:
        """Stop the program with the pod's own grace period, as a patch of the deadline would. The pod is kept and has failed."""
        self._deadline_exceeded = True
        # The operator reads it, and would otherwise lower the deadline again and again.
        self._body = {**self._body, "spec": {**self._body["spec"], "activeDeadlineSeconds": 1}}
        self._stop(self._own_grace)

    def kill(self) -> None:
        """Kill all processes of the pod."""
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.close()

    def _stop(self, grace_seconds: float) -> None:
        if self.ended:
            return
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(
                self._process.pid, signal.SIGTERM
            )  # send_signal would poll, and could take the exit code from asyncio
        asyncio.get_running_loop().call_later(grace_seconds, self.kill)

    @property
    def _own_grace(self) -> int:
        return int(self._body["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))

    def tail(self, num_bytes: int) -> str:
        """The end of what it printed."""
        if self._log_is_lost:
            return self._recent[-num_bytes:].decode("utf-8", errors="replace")
        return _tail(self._log, num_bytes) if self._log.exists() else ""

    def _termination_message(self, exit_code: int) -> str:
        """The termination message, by the rules of FallbackToLogsOnError."""
        try:
            message = _tail(self._termination_log, TERMINATION_MESSAGE_BYTES)
        except OSError:
            message = ""
        return message if message or exit_code == 0 else self.tail(FALLBACK_LOG_BYTES)

    def record(self) -> Pod:
        """The record of the pod, parsed by the same code as a pod of a cluster."""
        pod = pod_of(self.as_json())
        return replace(pod, exit=replace(pod.exit, seen=self._ended_at)) if pod.exit else pod

    def as_json(self) -> Body:
        """The pod as an API server would show it."""
        state = {"terminated": self._exit} if self._exit else {"running": {}}
        phase = "Running" if self._exit is None else "Failed" if self._exit["exitCode"] else "Succeeded"
        status: dict[str, Any] = {
            "phase": "Failed" if self._deadline_exceeded and self.ended else phase,
            "conditions": [{"type": "Ready", "status": "False" if self.ended else "True"}],
            "containerStatuses": [{"name": names.MAIN_CONTAINER, "state": state}],
        }
        if self._deadline_exceeded and self.ended:
            status["reason"] = "DeadlineExceeded"
        metadata = dict(self._body["metadata"])
        if self._deletion_deadline is not None:
            metadata["deletionTimestamp"] = rfc3339(self._deletion_deadline)
        # The process runs as the user who started the command, whatever the pod's securityContext says.
        spec = {key: value for key, value in self._body["spec"].items() if key != "securityContext"}
        return {**self._body, "metadata": metadata, "spec": spec, "status": status}


async def _lines(stream: asyncio.StreamReader, keep: Callable[[bytes], object]) -> AsyncIterator[str]:
    """Lines of a stream as text, without line ends. `keep` gets all bytes as they arrive."""
    rest = b""
    while chunk := await stream.read(64 * 1024):
        keep(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines.append(rest)
            rest = b""
        for line in lines:
            yield line.decode("utf-8", errors="replace")
    if rest:
        yield rest.decode("utf-8", errors="replace")


def _tail(path: Path, num_bytes: int) -> str:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
        return file.read(num_bytes).decode("utf-8", errors="replace")
