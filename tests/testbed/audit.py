"""The API server's own record of what was written, which no fault on the way to a client can falsify."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def policy(resources: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The audit policy with one entry for each completed write of these resources, named by API group."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {
                "level": "Metadata",
                "verbs": ["create", "update", "patch", "delete", "deletecollection"],
                "resources": [{"group": group, "resources": list(names)} for group, names in resources.items()],
            },
            {"level": "None"},
        ],
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One request that changed something, or tried to."""

    verb: str
    resource: str
    """Plural, with the subresource after a slash."""
    namespace: str
    name: str
    user_agent: str
    code: int
    """HTTP status of the answer."""


def writes(log: Path, namespace: str) -> list[Write]:
    """All of one namespace, in the order in which they were completed."""
    found = []
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        target = entry["objectRef"]
        if target.get("namespace") == namespace and "responseStatus" in entry:
            found.append(
                Write(
                    verb=entry["verb"],
                    resource="/".join(part for part in (target["resource"], target.get("subresource")) if part),
                    namespace=namespace,
                    name=target.get("name", ""),
                    user_agent=entry.get("userAgent", ""),
                    code=entry["responseStatus"]["code"],
                )
            )
    return found
