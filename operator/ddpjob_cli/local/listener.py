"""The interface through which a run reports to its caller."""

from typing import Protocol

from ddpjob_operator.api.status import DDPJobStatus


class Listener(Protocol):
    """Receives the events of a run."""

    def on_ignored(self, parts: tuple[str, ...]) -> None:
        """The first pod starts, and a local run ignores these parts of it."""

    def on_note(self, text: str) -> None:
        """Something happens to the run that concerns its user, in one sentence."""

    def on_pod(self, name: str, command: tuple[str, ...]) -> None:
        """A pod starts."""

    def on_line(self, rank: int, text: str) -> None:
        """The pod of this node rank printed a line, which is untrusted text."""

    def on_status(self, status: DDPJobStatus) -> None:
        """The job's status has changed."""
