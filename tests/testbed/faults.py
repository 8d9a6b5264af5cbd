"""What can go wrong between a client and the API server, and when: the rules of a fault proxy."""

from __future__ import annotations

import dataclasses
import random
import re
import threading
from collections.abc import Callable

#: The verbs that change something.
WRITES = ("create", "update", "patch", "delete")


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The request is answered with this HTTP status, 400 or more; the API server never sees it."""

    status: int
    retry_after_seconds: int | None = None
    """The Retry-After header; none where None."""


@dataclasses.dataclass(frozen=True, slots=True)
class Delay:
    """The request reaches the API server so much later, though its client be gone by then; each event of a watch, too."""

    least_seconds: float
    most_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """The request reaches the API server once `released` is set, though its client be gone by then."""

    released: threading.Event


@dataclasses.dataclass(frozen=True, slots=True)
class LoseRequest:
    """The connection is cut; the API server never sees the request."""

    then: Callable[[], None] | None = None
    """Called at that moment, for example to kill the client."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The API server has done what was asked, and the connection is cut before its answer."""

    then: Callable[[], None] | None = None
    """Called at that moment, for example to kill the client."""


@dataclasses.dataclass(frozen=True, slots=True)
class CutStream:
    """Instead of an event of a watch the client sees the end of the connection, or half of the event's line first."""

    mid_line: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Silence:
    """From this event on a watch says nothing any more, not even a bookmark, and its connection stays open."""


@dataclasses.dataclass(frozen=True, slots=True)
class StreamError:
    """Instead of an event a watch gives an ERROR event with this status, and ends."""

    status: int


RequestFault = Answer | Hold | LoseRequest | LoseAnswer
StreamFault = CutStream | Silence | StreamError
Fault = Delay | RequestFault | StreamFault


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a rule looks at."""

    verb: str
    """read (get and list), watch, create, update, patch or delete."""
    target: str
    """Path and query, percent-encoded."""

    @classmethod
    def of(cls, method: str, target: str) -> Request:
        """The request as the API server names it."""
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        watches = re.search(r"[?&]watch=(true|1)(&|$)", target)
        return cls(verb=verbs.get(method, "watch" if watches else "read"), target=target)


@dataclasses.dataclass(slots=True, kw_only=True)
class Rule:
    """A fault, and which requests it strikes, or which events of which watches.

    A schedule is a number of matches to skip and a number of times to strike; without them each match is struck with
    the probability given.
    """

    fault: Fault
    verbs: tuple[str, ...]
    """Empty is all."""
    target: str
    """A regular expression to be found in the request's path and query; empty is all."""
    probability: float
    skip: int
    times: int | None
    num_struck: int = 0
    """How often it has struck."""
    _num_skipped: int = 0

    def strikes(self, request: Request, chance: random.Random) -> bool:
        """Whether this request, or the next event of this watch, is struck. Counts, so ask once."""
        if self.verbs and request.verb not in self.verbs:
            return False
        if not re.search(self.target, request.target):
            return False
        if self._num_skipped < self.skip:
            self._num_skipped += 1
            return False
        if self.times is not None and self.num_struck >= self.times:
            return False
        if chance.random() >= self.probability:
            return False
        self.num_struck += 1
        return True


class Rules:
    """The rules in force. Any thread may change them while the proxy asks."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311 no secret
        self._lock = threading.Lock()
        self._rules: list[Rule] = []

    def add(self, rule: Rule) -> None:
        """From now on."""
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """No fault any more. A watch that fell silent stays so, as a dead connection does."""
        with self._lock:
            self._rules.clear()

    def delay_seconds(self, request: Request) -> float:
        """How much later this request, or the next event of this watch, passes."""
        with self._lock:
            return sum(
                self._chance.uniform(rule.fault.least_seconds, rule.fault.most_seconds)
                for rule in self._rules
                if isinstance(rule.fault, Delay) and rule.strikes(request, self._chance)
            )

    def fault_of(self, request: Request) -> RequestFault | None:
        """What else strikes this request: of several rules the one that was added first."""
        with self._lock:
            for rule in self._rules:
                if isinstance(rule.fault, RequestFault) and rule.strikes(request, self._chance):
                    return rule.fault
        return None

    def fault_of_event(self, watch: Request) -> StreamFault | None:
        """What else strikes the next event of this watch: of several rules the one that was added first."""
        with self._lock:
            for rule in self._rules:
                if isinstance(rule.fault, StreamFault) and rule.strikes(watch, self._chance):
                    return rule.fault
        return None
