"""How long a rank may make no progress. Importable without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ddpjob_ranks.contract import SLOW_PHASE_FACTOR, SLOW_PHASES

#: Collectives time out so much later than the watchdog ends the run. They count the time in which all ranks were paused
#: (a suspended machine), and the watchdog does not: so this is the longest pause that a run survives.
LONGEST_PAUSE_SECONDS = 24 * 3600
#: A phase that may come late, for a new shape, and take as long as in the first step.
COMPILE = "compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The longest time without progress before the first step is done, and after it."""

    first_step_seconds: float
    step_seconds: float
    more: Mapping[str, float] = field(default_factory=dict)
    """Those of phases that have their own, whenever they are."""

    def of(self, phase: str, *, past_first_step: bool) -> float:
        """How many seconds a rank may make no progress in a phase."""
        if phase in self.more:
            return self.more[phase]
        seconds = self.step_seconds * (SLOW_PHASE_FACTOR if phase in SLOW_PHASES else 1)
        return seconds if past_first_step and phase != COMPILE else max(seconds, self.first_step_seconds)

    @property
    def longest_seconds(self) -> float:
        """The longest of them, in any phase."""
        return max(self.first_step_seconds, SLOW_PHASE_FACTOR * self.step_seconds, *self.more.values())

    @property
    def collectives(self) -> timedelta:
        """The timeout of collectives, and of waits in the store after the rendezvous."""
        return timedelta(seconds=self.longest_seconds + LONGEST_PAUSE_SECONDS)
