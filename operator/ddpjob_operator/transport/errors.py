"""What can go wrong with a request to the API server, sorted by what the caller can do about it."""

import json
from typing import Any


class ApiError(Exception):
    """A request failed. Its text names the request and holds the server's message."""

    def __init__(self, request: str, message: str, *, status: int = 0) -> None:
        """`status` is the HTTP status; 0 where no answer came."""
        super().__init__(f"{request}: {message}")
        self.message = message
        self.status = status


class NotFoundError(ApiError):
    """404: the object does not exist."""


class ConflictError(ApiError):
    """409: the name is taken, or the object is another version or another uid. Read again, then decide again."""


class GoneError(ApiError):
    """410: the resourceVersion or the page is too old. List again."""


class ThrottledError(ApiError):
    """429: retry later, not before `retry_after_seconds`."""

    def __init__(self, request: str, message: str, *, status: int = 0, retry_after_seconds: float = 1.0) -> None:
        """`retry_after_seconds` comes from the server."""
        super().__init__(request, message, status=status)
        self.retry_after_seconds = retry_after_seconds


class RejectedError(ApiError):
    """Any other 4xx: the server will not accept the request as it is. Its message says why."""


class UnavailableError(ApiError):
    """5xx, no connection, no answer in time, or not authenticated yet (401). Whether the request took effect is unknown."""


def is_refused(error: ApiError) -> bool:
    """Whether the server does not let this process read something, or does not have it: the namespace or a Role is gone."""
    return error.status in (403, 404)


class NotSentError(UnavailableError):
    """A write was not sent, since this process does not hold the Lease at this moment."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: UnavailableError,
    404: NotFoundError,
    408: UnavailableError,
    409: ConflictError,
    410: GoneError,
}


def error_of(request: str, status: int, body: bytes, retry_after: str | None) -> ApiError:
    """The error for an HTTP answer of status 400 or more, with the message of the Status object in its body."""
    message = _message(body) or f"HTTP {status}"
    if status == 429:
        return ThrottledError(request, message, status=status, retry_after_seconds=_seconds(retry_after))
    kind = _BY_STATUS.get(status, RejectedError if status < 500 else UnavailableError)
    return kind(request, message, status=status)


def _message(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    try:
        status: Any = json.loads(text)
    except ValueError:
        return text[:1024]
    found = status.get("message") if isinstance(status, dict) else None
    return found if isinstance(found, str) else text[:1024]


def _seconds(retry_after: str | None) -> float:
    try:
        return min(max(float(retry_after or 1.0), 0.1), 60.0)
    except ValueError:  # An HTTP date, which the API server does not send.
        return 1.0
