"""The operator process under a supervisor that restarts it whenever it ends, as a Deployment does."""

import signal
import subprocess
import threading
from typing import Self

import testbed
from support.operator_process import OperatorProcess

#: More starts than any test causes, so that a process that always fails is not restarted without end.
MOST_STARTS = 200


class SupervisedOperator:
    """A context manager; unlike a kubelet it restarts at once, without a back-off.

    Attributes:
        exits: exit codes of the processes that have ended, those of signals negative.
    """

    def __init__(self, operator: OperatorProcess) -> None:
        self._operator = operator
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self.exits: list[int] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        while self._thread.is_alive():  # It may be between two processes.
            if self._process is not None:
                self._process.send_signal(signal.SIGKILL)
            self._thread.join(timeout=0.2)

    def kill(self) -> None:
        """Send SIGKILL to the process that runs now."""
        assert self._process is not None, "it was never started"
        self._process.kill()

    def terminate(self) -> None:
        """Send SIGTERM to the process that runs now."""
        assert self._process is not None, "it was never started"
        self._process.terminate()

    def wait_until_ready(self, *, unless_ended: int = MOST_STARTS) -> None:
        """Wait until the process that runs now is ready, or so many have ended."""
        testbed.wait_for(
            f"the operator to be ready; see {self._operator.log}",
            lambda: len(self.exits) >= unless_ended or self._operator.is_ready(),
        )

    def wait_for_end(self, number: int, seconds: float) -> bool:
        """Whether so many processes have ended, within this time."""
        try:
            testbed.wait_for("", lambda: len(self.exits) >= number, seconds=seconds, every_seconds=0.01)
        except testbed.DeadlineError:
            return False
        return True

    def _supervise(self) -> None:
        while not self._stopping.is_set() and len(self.exits) < MOST_STARTS:
            self._process = self._operator.launch()
            self.exits.append(self._process.wait())
