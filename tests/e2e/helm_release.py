"""The release that the end-to-end tests install, and helm to do it with."""

import subprocess
from pathlib import Path

from testbed import tools

RELEASE, SYSTEM_NAMESPACE = "ddpjob-operator", "ddpjob-system"


class Helm:
    """Call it with helm's own arguments."""

    def __init__(self, kubeconfig: Path) -> None:
        self._command = [str(tools.path("helm")), f"--kubeconfig={kubeconfig}"]

    def __call__(self, *arguments: str, timeout_seconds: float = 360) -> str:
        """Run helm and give what it printed."""
        command = [*self._command, *arguments, f"--namespace={SYSTEM_NAMESPACE}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout
