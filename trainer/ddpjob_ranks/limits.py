"""How long ranks may stand still. Importable without torch."""

from dataclasses import dataclass
from datetime import timedelta

from ddpjob_ranks.contract import SLOW_PHASE_FACTOR, SLOW_PHASES

#: Collectives wait this much longer than any standstill may last, so that the watchdog's verdict comes first.
AFTER_THE_VERDICT_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The longest standstill before the first step is done, and the longest after it."""

    first_step_seconds: float
    step_seconds: float

    def of(self, phase: str, *, past_first_step: bool) -> float:
        """Seconds that a rank may stand still in a phase."""
        seconds = self.step_seconds * (SLOW_PHASE_FACTOR if phase in SLOW_PHASES else 1)
        return seconds if past_first_step else max(seconds, self.first_step_seconds)

    @property
    def longest_seconds(self) -> float:
        """After which the watchdog has spoken, whatever the phase."""
        return max(self.first_step_seconds, SLOW_PHASE_FACTOR * self.step_seconds)

    @property
    def collectives(self) -> timedelta:
        """For collectives, and for what the store is asked once the ranks have met."""
        return timedelta(seconds=self.longest_seconds + AFTER_THE_VERDICT_SECONDS)
