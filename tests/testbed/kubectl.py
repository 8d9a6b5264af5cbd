"""kubectl, bound to one cluster."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import commands, tools
from testbed.errors import TestbedError

#: Longer than any single call takes; waits give their own.
TIMEOUT_SECONDS = 240


class KubectlError(TestbedError):
    """kubectl ended with a code other than 0; the text is what it wrote to standard error."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kubectl:
    """Call it with kubectl's own arguments: `kubectl("get", "pods", "-A")`.

    Attributes:
        kubeconfig: of the cluster.
        cache: where kubectl remembers what the cluster serves; its own default where None. A cluster that lives for
            minutes would leave several MB there.
    """

    kubeconfig: Path
    cache: Path | None = None

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
        """Run kubectl and give what it printed.

        Raises:
            KubectlError: it failed, or took longer than `timeout_seconds`.
        """
        cache = [f"--cache-dir={self.cache}"] if self.cache else []
        command = [str(tools.path("kubectl")), f"--kubeconfig={self.kubeconfig}", *cache, *arguments]
        return commands.answer(*command, seconds=timeout_seconds, error=KubectlError, stdin=stdin)

    def json(self, *arguments: str) -> Any:
        """Run kubectl with `--output=json` and give the parsed answer."""
        return json.loads(self(*arguments, "--output=json"))

    def apply(self, *objects: Mapping[str, object] | Sequence[Mapping[str, object]]) -> None:
        """Apply objects given as dictionaries, server-side."""
        items = [item for group in objects for item in ([group] if isinstance(group, Mapping) else group)]
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)
