"""HTTP answers become one small family of exceptions, with the server's message."""

import json

import pytest

from ddpjob_operator.transport import errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.RejectedError),
        (401, errors.UnavailableError),
        (403, errors.RejectedError),
        (404, errors.NotFoundError),
        (408, errors.UnavailableError),
        (409, errors.ConflictError),
        (410, errors.GoneError),
        (422, errors.RejectedError),
        (429, errors.ThrottledError),
        (500, errors.UnavailableError),
        (504, errors.UnavailableError),
    ],
)
def test_kind_by_status(status: int, kind: type[errors.ApiError]) -> None:
    assert type(errors.error_of("get /x", status, b"", None)) is kind


def test_the_message_is_that_of_the_status_object_or_of_the_http_status() -> None:
    body = json.dumps({"kind": "Status", "message": 'exceeded quota: "small"'}).encode()
    assert str(errors.error_of("create /x", 403, body, None)) == 'create /x: exceeded quota: "small"'
    for strange in (b"upstream is sad", b'["upstream is sad"]', b"\xff\xfe", b""):
        assert errors.error_of("get /x", 502, strange, None).message


@pytest.mark.parametrize(("header", "seconds"), [("3", 3.0), (None, 1.0), ("-1", 0.1), ("soon", 1.0), ("9999", 60.0)])
def test_retry_after(header: str | None, seconds: float) -> None:
    error = errors.error_of("get /x", 429, b"", header)
    assert isinstance(error, errors.ThrottledError)
    assert error.retry_after_seconds == seconds
