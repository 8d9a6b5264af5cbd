"""The status of a job as the API server stores it, which a newer or an older release may have written."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from ddpjob_operator.api.resource import Body
from ddpjob_operator.api.status import DDPJobStatus


def status_of(body: Body) -> DDPJobStatus:
    """The stored status. What is beyond its bounds is cut to them; what else cannot be read is dropped, field by field.

    A newer release may have written a field otherwise, and with an older CRD anything may be stored.
    """
    try:
        return DDPJobStatus.model_validate(body, extra="ignore")
    except ValidationError as error:
        found = [(e["loc"], e.get("ctx", {})) for e in error.errors(include_url=False) if e["loc"]]
    readable: Body = body
    for path, limits in found:
        if path[0] not in readable:
            continue
        if cut := _cut_to(limits):
            readable = _with(readable, path, cut)
        else:
            readable = {name: value for name, value in readable.items() if name != path[0]}
    return status_of(readable) if readable != body else DDPJobStatus()


def _cut_to(limits: Mapping[str, Any]) -> Callable[[Any], object] | None:
    """What brings a value within the limits that pydantic names; None where it is wrong otherwise."""
    if "max_length" in limits:
        return lambda long: long[: limits["max_length"]]
    bound = limits.get("ge", limits.get("le"))
    return None if bound is None else lambda _: bound


def _with(value: Any, path: tuple[int | str, ...], change: Callable[[Any], object]) -> Any:
    """The same JSON with a change of what is at this path."""
    if not path:
        return change(value)
    head, rest = path[0], path[1:]
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    changed = {key: _with(inner, rest, change) if key == head else inner for key, inner in items}
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
