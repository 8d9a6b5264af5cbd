"""The status of a job as the API server stores it, which a newer or an older release may have written."""

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
