"""Shortens what a rank prints when it has only lost another one, or is asked to stop: its stacks name no cause.

The stack of the rank that failed by itself is shown as a whole. The logs keep every line.
"""

import re

from ddpjob_operator.api.names import contract
from ddpjob_operator.core.failure.log_parsing import is_echo
from ddpjob_operator.core.failure.tracebacks import TRACEBACK, source_and_text

#: A stack with more lines is shown as it is.
MAX_LINES = 500
#: A line of the stacks that follow on contract.STACKS_AT_STOP, or an indented one of the program right after them.
_OF_THREADS = re.compile(r"thread |\s")


class PeerStacks:
    """Holds the lines of each stack until its exception shows whether to show them."""

    def __init__(self, *, where: str = "in the log") -> None:
        """Nothing is held. `where` says where the stacks that are left out can be read."""
        self._where = where
        self._held: dict[tuple[int, str], list[str]] = {}
        self._stopping: set[tuple[int, str]] = set()

    def shown(self, rank: int, line: str) -> list[str]:
        """The lines to show after the pod of this node rank has printed another one."""
        source, text = source_and_text(line)
        held = self._held.get((rank, source))
        if text == contract.STACKS_AT_STOP:
            self._stopping.add((rank, source))
            return [f"{line} (stacks: {self._where})"]
        if (rank, source) in self._stopping:
            if _OF_THREADS.match(text):
                return []
            self._stopping.remove((rank, source))
        if text.startswith(TRACEBACK):
            self._held[rank, source] = [line]
            return held or []
        if held is None:
            return [line]
        if text[:1].isspace() and len(held) < MAX_LINES:
            held.append(line)
            return []
        del self._held[rank, source]
        return [f"{line} (stack: {self._where})"] if is_echo(text) else [*held, line]

    def rest(self) -> list[tuple[int, str]]:
        """Rank and text of the lines of stacks without an end."""
        lines = [(rank, line) for (rank, _), held in self._held.items() for line in held]
        self._held.clear()
        return lines
