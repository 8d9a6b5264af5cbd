"""helm, bound to one cluster or to none."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed import commands, tools
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
        command = [str(tools.path("helm")), *map(str, arguments)]
        if values is not None:
            command += ["--values", "-"]
        environment = {"KUBECONFIG": str(self.kubeconfig or os.devnull)}
        if self.cache is not None:
            environment["KUBECACHEDIR"] = str(self.cache)
        stdin = json.dumps(values)
        return commands.answer(*command, seconds=TIMEOUT_SECONDS, error=HelmError, stdin=stdin, **environment)
