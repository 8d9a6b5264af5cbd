"""The lines that the trainer prints while it trains, in a form for people: fewer of them, and short numbers.

What the ranks printed stays unchanged in the logs; this is about what a person sees go by. Lines of other programs pass.
"""

import re
import time
from collections.abc import Callable

from ddpjob_cli.rendering import number
from ddpjob_operator.api.names import contract

#: A line about a step is shown at most this often for each rank.
SECONDS_BETWEEN_STEPS = 3.0
#: All settings in one line of JSON, which the manifest and the evidence have, too.
_SETTINGS = "config {"
#: A stack of torch's C++ code, which follows on a warning and names no line of a user's program.
_CPP_STACK = re.compile(r"Exception raised from \w+ at |frame #\d+: |<omitting python frames>")
_STEP = re.compile(r"epoch \d+ step \d+(?:/\d+)? ")
#: What a session prints: `step 1/200 loss 4.24160147`. It prints few of them.
_STEP_OF_A_SESSION = re.compile(r"step \d+/\d+(?: [\w/.-]+ -?[\d.]+(?:e[+-]?\d+)?)+$")
#: A number with more digits than a person reads.
_EXACT = re.compile(r"(?<= )-?\d+\.\d{4,}(?:e[+-]?\d+)?(?= |$)")


class TrainingLines:
    """Decides for each line whether and how it is shown."""

    def __init__(self, *, verbose: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """`verbose` shows every line as it is."""
        self._verbose = verbose
        self._clock = clock
        self._shown_at: dict[int, float] = {}

    def shown(self, rank: int, line: str) -> str | None:
        """The line to show, or None."""
        if self._verbose:
            return line
        if contract.PROGRESS_PREFIX in line or line.startswith(_SETTINGS) or _CPP_STACK.match(line):
            return None
        if _STEP.match(line):
            now = self._clock()
            if now - self._shown_at.get(rank, float("-inf")) < SECONDS_BETWEEN_STEPS:
                return None
            self._shown_at[rank] = now
        if _STEP.match(line) or _STEP_OF_A_SESSION.match(line):
            return _EXACT.sub(lambda found: number(float(found.group())), line)
        return line
