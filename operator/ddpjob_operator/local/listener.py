"""What a run tells whoever watches it."""

from typing import Protocol

from ddpjob_operator.api.status import DDPJobStatus


class Listener(Protocol):
    """Who watches a run."""

    def on_ignored(self, parts: tuple[str, ...]) -> None:
        """Once, at the first pod: what of it this machine ignores."""

    def on_pod(self, name: str, command: tuple[str, ...]) -> None:
        """A pod starts."""

    def on_line(self, rank: int, text: str) -> None:
        """The pod of this node rank printed a line. It is untrusted text."""

    def on_status(self, status: DDPJobStatus) -> None:
        """The job's status has changed."""
