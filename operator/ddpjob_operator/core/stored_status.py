"""The status of a job as the API server stores it, which a newer or an older release may have written."""

from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from ddpjob_operator.api.resource import Body
from ddpjob_operator.api.status import DDPJobStatus


def status_of(body: Body) -> DDPJobStatus:
    """The stored status. What a newer release wrote otherwise is dropped, field by field, rather than all that is known."""
    try:
        return DDPJobStatus.model_validate(body, extra="ignore")
    except ValidationError as error:
        unreadable = {str(e["loc"][0]) for e in error.errors(include_url=False) if e["loc"]}
        readable = {name: value for name, value in body.items() if name not in unreadable}
        return status_of(readable) if len(readable) < len(body) else DDPJobStatus()


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
