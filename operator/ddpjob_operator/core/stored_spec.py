"""The spec of a job as the API server stores it, which a newer or an older release may have written."""

import copy
import json
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from ddpjob_operator.api.resource import Body
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.untrusted import printable

#: The longest spec that a job may begin with, as JSON. The API server stores ten times as much, and the parsed objects take up to
#: ten times the memory of their text (measured: 12 MiB for 1.1 MiB of small objects), in this process and for each pod of a list.
MAX_SPEC_BYTES = 128 * 1024


def why_too_large(body: Body) -> str:
    """Why no job may begin with this spec, with its measured size; empty if its size is right."""
    try:
        num_bytes = len(
            json.dumps(body, separators=(",", ":"), ensure_ascii=False, default=str).encode(errors="replace")
        )
    except RecursionError:  # nested too deeply to be read at all, which `spec_of` reports
        return ""
    if num_bytes <= MAX_SPEC_BYTES:
        return ""
    return (
        f"spec: {num_bytes} bytes as JSON, and {MAX_SPEC_BYTES} are the most: move long scripts and lists out of it, for example into"
        " a ConfigMap that spec.template mounts"
    )


def spec_of(body: Body) -> tuple[DDPJobSpec | None, str]:
    """The parsed spec, or None and what this release cannot read of it."""
    try:
        spec = DDPJobSpec.model_validate(body)
        spec.shape()
    except ValidationError as error:
        errors = error.errors(include_url=False)
    except ValueError as error:  # what cannot be written as JSON again cannot be made a pod of
        return None, printable(f"spec: {error}")
    else:
        return spec, ""
    unknown = [e["loc"] for e in errors if e["type"] == "extra_forbidden"]
    if unknown:
        # The API server has refused what the CRD does not know; what this release does not know is a newer one's default.
        # (Reading with extra="ignore" instead would drop what a user lays over the pod, which no release declares.)
        return spec_of(_without(body, unknown))
    return None, printable("; ".join(f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors))


def _without(body: Body, places: Iterable[tuple[int | str, ...]]) -> Body:
    # Without a deep copy, which exceeds the recursion limit for objects that are nested as deeply as the API allows.
    pruned = dict(body)
    for *path, last in places:
        parent: Any = pruned
        for step in path:
            parent[step] = copy.copy(parent[step])
            parent = parent[step]
        del parent[last]
    return pruned
