"""The status of a job as the API server stores it, which a newer or an older release may have written."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from ddpjob_operator.api.resource import Body
from ddpjob_operator.api.status import DDPJobStatus


def status_of(body: Body) -> DDPJobStatus:
    """The stored status. A number beyond its bounds becomes the bound; what else cannot be read is dropped, field by field.

    A newer release may have written a field otherwise, and with an older CRD anything may be stored.
    """
    try:
        return DDPJobStatus.model_validate(body, extra="ignore")
    except ValidationError as error:
        found = [(e["loc"], e.get("ctx", {})) for e in error.errors(include_url=False) if e["loc"]]
    readable: Body = body
    for path, limits in found:
        bound = limits.get("ge", limits.get("le"))
        if bound is None:
            readable = {name: value for name, value in readable.items() if name != path[0]}
        elif path[0] in readable:
            readable = _with(readable, path, bound)
    return status_of(readable) if readable != body else DDPJobStatus()


def _with(value: Any, path: tuple[int | str, ...], new: object) -> Any:
    """The same JSON with another value at this path."""
    if not path:
        return new
    head, rest = path[0], path[1:]
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    changed = {key: _with(inner, rest, new) if key == head else inner for key, inner in items}
    return changed if isinstance(value, Mapping) else list(changed.values())


def field_paths(status: Body) -> frozenset[str]:
    """The paths of all fields of a status in JSON, such as restarts.counted; those of the items of a list are one path each."""
    return frozenset(_paths(status, ""))


def _paths(value: object, path: str) -> Iterable[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield (inner_path := f"{path}.{name}" if path else str(name))
            yield from _paths(inner, inner_path)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, path)
