"""helm, bound to one cluster or to none."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed import tools
from testbed.errors import TestbedError

#: Longer than any call here takes, `--wait` included.
TIMEOUT_SECONDS = 360


class HelmError(TestbedError):
    """helm ended with a code other than 0; the text is what it wrote."""


@dataclasses.dataclass(frozen=True, slots=True)
class Helm:
    """Call it with helm's own arguments: `helm("lint", chart)`.

    Attributes:
        kubeconfig: the cluster it sees; none where None.
        cache: where it remembers what the cluster serves; its own default where None.
    """

    kubeconfig: Path | None = None
    cache: Path | None = None

    def __call__(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """Run helm, with `values` as a values file, and give what it printed.

        Raises:
            HelmError: it failed, or took longer than `TIMEOUT_SECONDS`.
        """
        what = f"helm {' '.join(map(str, arguments))}"
        command = [str(tools.path("helm")), *map(str, arguments)]
        if values is not None:
            command += ["--values", "-"]
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig or os.devnull)}
        if self.cache is not None:
            environment["KUBECACHEDIR"] = str(self.cache)
        try:
            done = subprocess.run(
                command,
                input=json.dumps(values),
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HelmError(f"{what}: no answer within {TIMEOUT_SECONDS} s") from None
        if done.returncode != 0:
            raise HelmError(f"{what}:\n{done.stdout}{done.stderr}")
        return done.stdout
