"""The operator as a process of this machine, for tests and for the benchmark."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import testbed
from support import REPOSITORY

READY_SECONDS = 240.0
STOP_SECONDS = 120.0


class OperatorProcess:
    """`python -m ddpjob_operator`, or a program that runs it with other constants; its output is appended to `log`.

    It takes its code from PYTHONPATH, or else from this repository. Of arguments that are given twice the last one counts.
    """

    def __init__(
        self,
        kubeconfig: Path,
        log: Path,
        *arguments: str,
        program: tuple[str, ...] = ("-m", "ddpjob_operator"),
    ) -> None:
        (self.port,) = testbed.free_ports(1)
        self.log = log
        self._kubeconfig = kubeconfig
        self._command = [sys.executable, *program, "--trainer-image", "trainer:1", *arguments]
        self._command += ["--health-port", str(self.port)]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        testbed.wait_for("the operator to be ready", self._is_ready_or_dead, seconds=READY_SECONDS, every_seconds=0.02)

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it and return at once."""
        roots = (os.environ.get("PYTHONPATH", ""), str(REPOSITORY / "operator"), str(REPOSITORY / "trainer"))
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig), "PYTHONPATH": os.pathsep.join(roots)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)
        return self.process

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        assert self.process is not None, "it was never started"
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process with SIGKILL, also if it is stopped, and wait for its end."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End the process with SIGTERM; gives its exit code."""
        return self._end(signal.SIGTERM)

    def get(self, path: str) -> str:
        """Body of one of the operator's own pages, for example /metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        """Whether the operator reports that it is ready."""
        try:
            return self.get("/readyz") == "ok\n"
        except (urllib.error.URLError, OSError):
            return False

    def _is_ready_or_dead(self) -> bool:
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            raise AssertionError(f"the operator ended with code {code}:\n{self.log.read_text()[-4000:]}")
        return self.is_ready()

    def _end(self, number: signal.Signals) -> int:
        self.send(number)
        assert self.process is not None
        try:
            return self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
