"""What can go wrong with a request to the API server, sorted by what the caller can do about it."""

import json
from typing import Any


class ApiError(Exception):
    """A request failed. Its text says which request, and the server's words."""

    def __init__(self, request: str, words: str, *, status: int = 0) -> None:
        """`status` is the HTTP status; 0 where no answer came."""
        super().__init__(f"{request}: {words}")
        self.words = words
        self.status = status


class NotFoundError(ApiError):
    """404: the object is not there."""


class ConflictError(ApiError):
    """409: the name is taken, or the object is another version or another uid. Read again, then decide again."""


class GoneError(ApiError):
    """410: the resourceVersion or the page is too old. List again."""


class ThrottledError(ApiError):
    """429: come back later, not before `retry_after_seconds`."""

    def __init__(self, request: str, words: str, *, status: int = 0, retry_after_seconds: float = 1.0) -> None:
        """`retry_after_seconds` is the server's wish."""
        super().__init__(request, words, status=status)
        self.retry_after_seconds = retry_after_seconds


class RejectedError(ApiError):
    """Any other 4xx: the request will not be granted as it is. The server's words say why."""


class UnavailableError(ApiError):
    """5xx, no connection, no answer in time, or not let in yet (401). Whether the request took effect is unknown.

    Also a write that was not sent, since this process must not write any more.
    """


_BY_STATUS: dict[int, type[ApiError]] = {
    401: UnavailableError,
    404: NotFoundError,
    408: UnavailableError,
    409: ConflictError,
    410: GoneError,
}


def error_of(request: str, status: int, body: bytes, retry_after: str | None) -> ApiError:
    """The error for an HTTP answer of status 400 or more, with the words of the Status object in its body."""
    words = _words(body) or f"HTTP {status}"
    if status == 429:
        return ThrottledError(request, words, status=status, retry_after_seconds=_seconds(retry_after))
    kind = _BY_STATUS.get(status, RejectedError if status < 500 else UnavailableError)
    return kind(request, words, status=status)


def _words(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    try:
        status: Any = json.loads(text)
    except ValueError:
        return text[:1024]
    message = status.get("message") if isinstance(status, dict) else None
    return message if isinstance(message, str) else text[:1024]


def _seconds(retry_after: str | None) -> float:
    try:
        return min(max(float(retry_after or 1.0), 0.1), 60.0)
    except ValueError:  # An HTTP date, which the API server does not send.
        return 1.0
