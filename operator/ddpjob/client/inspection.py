"""What running ranks say about themselves: their stacks, and where their time goes.

A command in each pod asks the ranks there. Only the built-in trainer and programs on `ddpjob.session` answer.
"""

import asyncio
import functools
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from ddpjob.client.errors import ClientError, ConflictError, ForbiddenError, translated
from ddpjob.client.jobs import Job, Pod
from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from ddpjob_operator.core.untrusted import printable
from ddpjob_operator.transport.client import Client as Transport
from ddpjob_operator.transport.resources import PODS

T = TypeVar("T")

RankState = contract.RankState

#: The interpreter starts, and each rank of the pod has 5 s to answer.
_SECONDS: Final = 60.0
#: Beyond these an answer is not that of a rank: what a pod says is what its image wants to say.
_MOST: Final = 2**63
_PHASE_LENGTH: Final = 32
#: Each request holds a connection and starts an interpreter.
_MAX_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStacks:
    """The Python stacks of all threads of a rank."""

    rank: int | None
    """Rank among all processes of the job; None for a pod in which no rank answers."""
    pod: Pod
    text: str
    error: str
    """Why there are no stacks; empty if there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Where a rank is, and where its time went since its first step."""

    rank: int | None
    """Rank among all processes of the job; None for a pod in which no rank answers."""
    pod: Pod
    state: RankState | None
    error: str
    """Why there is no state; empty if there is one."""


# In the client's class `list` is a method.
Stacks = list[RankStacks]
RankProgresses = list[RankProgress]


async def stacks(api: Transport, job: Job, pods: Collection[Pod]) -> Stacks:
    """The stacks of each rank in these pods, by rank."""
    return await _ask_all(api, job, pods, "stacks")


async def progress(api: Transport, job: Job, pods: Collection[Pod]) -> RankProgresses:
    """The state of each rank in these pods, by rank."""
    return [_read_state(answer) for answer in await _ask_all(api, job, pods, "state")]


def _read_state(answer: RankStacks) -> RankProgress:
    state, error = None, answer.error
    if not error:
        try:
            state = _known(_reader(RankState).validate_json(answer.text))
        except ValueError:
            error = "its answer cannot be read: its image may have another release of ddpjob"
    return RankProgress(rank=answer.rank, pod=answer.pod, state=state, error=error)


def _known(state: RankState) -> RankState:
    """The state, whose texts are visible; ValueError where a number is none that a rank can have reached."""
    numbers = [*state.seconds.values(), *(value for value in asdict(state).values() if isinstance(value, int | float))]
    if not all(abs(number) < _MOST for number in numbers):  # not a number, either
        raise ValueError("a number is too large")
    return replace(state, phase=printable(state.phase)[:_PHASE_LENGTH])


async def _ask_all(api: Transport, job: Job, pods: Collection[Pod], request: str) -> Stacks:
    running = [pod for pod in pods if pod.started and not pod.finished]
    if not running:
        raise ConflictError(
            f"{names.KIND} {job.namespace}/{job.name}: no pod of attempt {job.status.attempt} runs; the job is {job.phase}:"
            f" {job.status.message or 'no message'}; to see what the ranks printed: ddpjob logs {job.name} -n"
            f" {job.namespace}"
        )
    limit = asyncio.Semaphore(_MAX_AT_ONCE)

    async def ask(pod: Pod) -> Stacks:
        async with limit:
            return await _ask(api, job.namespace, pod, request)

    found = [answer for of_pod in await asyncio.gather(*map(ask, running)) for answer in of_pod]
    return sorted(found, key=lambda answer: (-1 if answer.rank is None else answer.rank, answer.pod.rank))


async def _ask(api: Transport, namespace: str, pod: Pod, request: str) -> Stacks:
    command = ["python", "-m", contract.INSPECTION_MODULE, request]
    try:
        with translated("create", PODS, namespace, pod.name):
            done = await api.execute(
                namespace, pod.name, command, container=names.MAIN_CONTAINER, timeout_seconds=_SECONDS
            )
    except ForbiddenError:
        raise
    except ClientError as error:  # the other pods may answer
        return [RankStacks(rank=None, pod=pod, text="", error=str(error))]
    if done.exit_code != 0:
        last = (done.errors.strip().splitlines() or [f"exit code {done.exit_code}"])[-1]
        why = f"{' '.join(command)} failed in it: {printable(last)}"
        return [RankStacks(rank=None, pod=pod, text="", error=why)]
    return [_read(pod, line) for line in done.output.splitlines()] or [
        RankStacks(
            rank=None,
            pod=pod,
            text="",
            error="no process answers: its program has not started, or uses neither the built-in trainer nor ddpjob.session",
        )
    ]


@functools.cache
def _reader(kind: type[T]) -> TypeAdapter[T]:
    """Made when it is needed first: most commands import this module and ask no ranks."""
    return TypeAdapter(kind)


def _read(pod: Pod, line: str) -> RankStacks:
    try:
        answer = _reader(contract.RankAnswer).validate_json(line)
    except ValidationError:
        return RankStacks(rank=None, pod=pod, text="", error=f"it printed {printable(line)[:200]!r}")
    text = "\n".join(map(printable, answer.answer.splitlines()))
    return RankStacks(rank=answer.rank, pod=pod, text=text, error=printable(answer.error))
