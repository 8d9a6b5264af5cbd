"""The client's view of a job: the API's own models of spec and status, next to the object as the server gave it.

The model of the spec and the search for exceptions are imported when they are used: most commands read the status alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ddpjob_operator.api.names import (
    LABEL_ATTEMPT,
    LABEL_PLACEHOLDER,
    LABEL_RANK,
    LABEL_REPLACEMENT,
    LABEL_SPARE,
    MAIN_CONTAINER,
    ConditionType,
    Phase,
    contract,
)
from ddpjob_operator.api.resource import Body
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.stored_status import status_of
from ddpjob_operator.core.untrusted import printable, visible, visible_strings
from ddpjob_operator.transport.decoding import shallow

if TYPE_CHECKING:
    from ddpjob_operator.api.spec import DDPJobSpec


class Goal(StrEnum):
    """What `wait` waits for."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A DDPJob as the server holds it."""

    namespace: str
    name: str
    uid: str
    created: str
    """metadata.creationTimestamp."""
    generation: int
    deleting: bool
    status: DDPJobStatus
    body: Body
    """The whole object as JSON."""

    @property
    def spec(self) -> "DDPJobSpec | None":
        """The parsed spec; None where this release cannot read it, and `spec_error` says why."""
        return self._parsed_spec[0]

    @property
    def spec_error(self) -> str:
        """What this release cannot read of the spec; empty otherwise."""
        return self._parsed_spec[1]

    @cached_property
    def _parsed_spec(self) -> "tuple[DDPJobSpec | None, str]":
        from ddpjob_operator.core.stored_spec import spec_of

        return spec_of(self.body.get("spec") or {})

    @property
    def phase(self) -> str:
        """The phase in the status; Pending before the operator has written one."""
        return self.status.phase or Phase.PENDING

    @property
    def succeeded(self) -> bool:
        """Whether the job has succeeded."""
        return self.status.condition(ConditionType.SUCCEEDED)

    @property
    def failed(self) -> bool:
        """Whether the job has failed."""
        return self.status.condition(ConditionType.FAILED)

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.status.finished

    def reached(self, goal: Goal) -> bool | None:
        """Whether the job has reached the goal; None while both are possible."""
        if goal is Goal.FINISHED:
            return True if self.finished else None
        if goal is Goal.RUNNING:
            return True if self.status.condition(ConditionType.RUNNING) else (False if self.finished else None)
        if not self.finished:
            return None
        return self.succeeded if goal is Goal.SUCCEEDED else self.failed


def read_job(body: Body) -> Job:
    """The job of an API body; that of a dry run has no uid. All texts of its status are visible and have one line."""
    body = shallow(body)
    metadata = body["metadata"]
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        created=metadata.get("creationTimestamp", ""),
        generation=metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        status=status_of(visible_strings(body.get("status") or {})),
        body=body,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One node rank of an attempt."""

    name: str
    attempt: int
    rank: int
    node: str | None
    state: str
    """Phase of the pod, or the reason for which its main container waits or ended, such as ImagePullBackOff."""
    restarts: int
    exit_code: int | None
    message: str
    """The exception in the termination message of the program, or else that message, or that of the pod. Of a program that
    answered SIGTERM with exit code 143, without the last lines that it had printed, which say nothing about that."""
    started: bool
    """Whether the main container has started, so that there is a log."""
    finished: bool
    body: Body
    """The whole object as JSON. The server leaves kind and version out of the items of a list, so they are added."""

    @property
    def replacement(self) -> int:
        """How often the pod of this rank had been replaced in its attempt when this one was created."""
        number = (self.body.get("metadata", {}).get("labels") or {}).get(LABEL_REPLACEMENT, "")
        return int(number) if number.isdecimal() else 0


def read_pod(body: Body) -> Pod | None:
    """The rank that a pod runs; None for a pod without the operator's labels, and for one that runs no rank."""
    labels = body["metadata"].get("labels") or {}
    if LABEL_PLACEHOLDER in labels or LABEL_SPARE in labels:
        return None
    try:
        attempt, rank = int(labels[LABEL_ATTEMPT]), int(labels[LABEL_RANK])
    except (KeyError, ValueError):
        return None
    status: Mapping[str, Any] = body.get("status") or {}
    containers = status.get("containerStatuses") or ()
    main: Mapping[str, Any] = next((c for c in containers if c.get("name") == MAIN_CONTAINER), {})
    state: Mapping[str, Any] = main.get("state") or {}
    ended = state.get("terminated")
    waiting = state.get("waiting") or {}
    said = (ended or {}).get("message") or ""
    stopped = (ended or {}).get("exitCode") == contract.EXIT_TERMINATED
    of_pod = "" if stopped and status.get("reason") == "DeadlineExceeded" else status.get("message")  # set to stop it
    phase = status.get("phase", "Pending")
    reason = (ended or {}).get("reason") if phase == "Failed" else waiting.get("reason")
    return Pod(
        name=body["metadata"]["name"],
        attempt=attempt,
        rank=rank,
        node=(body.get("spec") or {}).get("nodeName"),
        state=printable(
            "Terminating" if "deletionTimestamp" in body["metadata"] else reason or status.get("reason") or phase
        ),
        restarts=main.get("restartCount", 0),
        exit_code=(ended or {}).get("exitCode"),
        message=_exception_in(said)
        or printable(("" if stopped else said.replace("\n", ": ", 1)) or waiting.get("message") or of_pod or ""),
        started="running" in state or ended is not None,
        finished=phase in ("Succeeded", "Failed") or ended is not None,
        body={"apiVersion": "v1", "kind": "Pod", **body},
    )


def _exception_in(message: str) -> str:
    """The exception in a termination message; empty without one."""
    if not message:
        return ""
    from ddpjob_operator.core.failure.log_parsing import last_exception

    return last_exception(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """An Event of the API about a job or one of its pods."""

    time: str
    """When it last happened."""
    type: str
    """Normal or Warning."""
    reason: str
    object: str
    """Kind and name of the object, for example Pod/resnet-1-0."""
    message: str
    count: int
    body: Body


def read_event(body: Body) -> JobEvent:
    """The event of an API body, without control characters."""
    about = body.get("involvedObject") or {}
    series = body.get("series") or {}
    time = series.get("lastObservedTime") or body.get("lastTimestamp") or body.get("eventTime")
    return JobEvent(
        time=visible(time or body["metadata"].get("creationTimestamp", "")),
        type=visible(body.get("type", "Normal")),
        reason=printable(body.get("reason", "")),
        object=visible(f"{about.get('kind')}/{about.get('name')}"),
        message=printable(body.get("message", "")),
        count=series.get("count") or body.get("count") or 1,
        body={"apiVersion": "v1", "kind": "Event", **body},
    )
