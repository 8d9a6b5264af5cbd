"""When a rank asks the others for their status: pure functions of its mark, the watchdog's round and the time.

Time in which this process did not run (SIGSTOP, a frozen container, a stalled virtual machine) does not count: a pause
of all ranks is no hang.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Self

from ddpjob_ranks.limits import Limits

#: Longest time for a rank to answer. Its threads answer within milliseconds where they can run.
ANSWER_SECONDS = 5.0
#: The same once a rank has lost another one, which delays the restart.
LOSS_SECONDS = 0.5
#: How often a rank without progress looks at its own mark while it waits for an answer.
TICKS_PER_ANSWER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often the watchdog looks and how long it waits."""

    answer_seconds: float
    loss_seconds: float = LOSS_SECONDS
    """For the others to answer a rank that has lost another one."""

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """For the limits of a run: short limits are watched more closely."""
        return cls(answer_seconds=min(ANSWER_SECONDS, limits.step_seconds), loss_seconds=LOSS_SECONDS)

    @property
    def tick_seconds(self) -> float:
        """Between two looks at the mark."""
        return self.answer_seconds / TICKS_PER_ANSWER

    @property
    def longest_gap_seconds(self) -> float:
        """Between two looks: whatever is longer was a pause, and counts as this."""
        return 2 * self.tick_seconds

    @property
    def decision_seconds(self) -> float:
        """For the coordinator of a round to publish its decision."""
        return 2 * self.answer_seconds

    @property
    def silence_seconds(self) -> float:
        """For a round to end, whatever ranks do. After that the store itself does not respond."""
        return 3 * self.answer_seconds

    @property
    def search_seconds(self) -> float:
        """For a rank to find out which one it has lost, whatever the store does."""
        return 2 * self.loss_seconds

    @property
    def parting_seconds(self) -> float:
        """For ranks that lost the same one to end together."""
        return self.loss_seconds / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Seconds since a moment, without those in which nobody looked at it."""

    read_at: float
    seconds: float = 0.0

    def at(self, now: float, timing: Timing) -> Self:
        """The stopwatch after another look."""
        return replace(self, read_at=now, seconds=self.seconds + min(now - self.read_at, timing.longest_gap_seconds))


class Action(Enum):
    """What the monitor does after a look."""

    NONE = auto()
    ASK = auto()
    """Ask all ranks for their status."""
    END = auto()
    """End the process: the store that ranks ask through does not respond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """For how long the mark of this rank has not moved, and the question that this rank has asked since.

    Attributes:
        since: When the mark moved last, on the monotonic clock.
        idle: Time from then on.
        round: The round of the last question; rounds are numbered by the watchdog, and each ends with a decision.
        asked: Time since that question; None if there was none.
    """

    since: float
    idle: Stopwatch
    round: int = -1
    asked: Stopwatch | None = None

    @classmethod
    def starting(cls, since: float, now: float) -> Self:
        """The state before the first look."""
        return cls(since=since, idle=Stopwatch(read_at=now))

    def at(self, since: float, now: float, timing: Timing) -> Self:
        """The state after another look, with the mark as it is now."""
        before = self.idle if since == self.since else Stopwatch(read_at=since)
        return replace(self, since=since, idle=before.at(now, timing))

    def act(self, *, limit_seconds: float, round_number: int, timing: Timing) -> tuple[Self, Action]:
        """What to do about it, and the state after that."""
        if self.idle.seconds < limit_seconds:
            return replace(self, asked=None), Action.NONE
        if self.asked is None or self.round != round_number:
            return replace(self, asked=Stopwatch(read_at=self.idle.read_at), round=round_number), Action.ASK
        asked = self.asked.at(self.idle.read_at, timing)
        return replace(self, asked=asked), Action.END if asked.seconds > timing.silence_seconds else Action.NONE
