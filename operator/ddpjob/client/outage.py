"""An API server that cannot be reached while something is followed: how often and how long it is tried again."""

import asyncio
import time

#: An upgrade of a control plane takes a few minutes.
MAX_SECONDS = 300.0
RETRY_SECONDS = 1.0


class Outage:
    """The time since the last good answer."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_over(self) -> None:
        """A request has succeeded."""
        self._since = None

    async def pause(self, error: Exception) -> None:
        """Wait before the next try; raises the error if the outage has lasted too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > MAX_SECONDS:
            raise error
        await asyncio.sleep(RETRY_SECONDS)
