"""Requests and their answers: errors by status, objects without managedFields, lines of streams, what is sent again or not at all, and the proxy."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from kubernetes.aio.client import Configuration

from ddpjob.client.jobs import read_job
from ddpjob_cli.output import json_text, yaml_text
from ddpjob_cli.report_page import redacted
from ddpjob_operator.transport import errors
from ddpjob_operator.transport.access import is_proxied
from ddpjob_operator.transport.connection import Connection, Request, lines_of, reason_of
from ddpjob_operator.transport.decoding import decoded
from ddpjob_operator.transport.resources import DDPJOBS, PODS


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


#: What a user can put into a pod to look like the end or the start of managedFields.
HOSTILE = ['}]},"spec":', ',"managedFields":[', '\\}]},\\"spec\\":', '}],"']
SET_BY = [
    {"manager": "ddpjob", "fieldsV1": {"f:metadata": {"f:finalizers": {'v:"}]},\\"spec\\":"': {}, ".": {}}}}},
    {"manager": "kubelet", "fieldsV1": {'k:{"name":"}],"}': {}}, "subresource": "status"},
]


def pod(text: str, managed: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod with its fields in the order of the API server."""
    metadata = {"name": "p", "annotations": {text: text}, "ownerReferences": [{"name": "j"}], "managedFields": managed}
    env = [{"name": text, "value": text}]
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "env": env}]}, "status": {"message": text}}


def without(of: dict[str, Any]) -> dict[str, Any]:
    return {**of, "metadata": {name: value for name, value in of["metadata"].items() if name != "managedFields"}}


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize("text", HOSTILE)
def test_each_pod_of_a_list_or_an_event_loses_its_managed_fields_and_nothing_else(text: str) -> None:
    pods = [pod(text, SET_BY), pod("", SET_BY), pod(text, [{"manager": text, "fieldsV1": {text: {}}}])]
    assert decoded(PODS, compact({"items": pods})) == {"items": [without(each) for each in pods]}
    event = {"type": "MODIFIED", "object": pods[0]}
    assert decoded(PODS, compact(event)) == {"type": "MODIFIED", "object": without(pods[0])}


@pytest.mark.parametrize("text", HOSTILE)
def test_an_unexpected_order_of_fields_is_decoded_whole(text: str) -> None:
    by_name = json.loads(json.dumps({"items": [pod(text, SET_BY), pod(text, SET_BY)]}, sort_keys=True))
    assert decoded(PODS, compact(by_name)) == by_name
    assert decoded(DDPJOBS, compact(by_name)) == by_name


@pytest.mark.parametrize("depth", [100, 1500, 9000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}"), ('{"a\\"":"]}{","b":[', '],"c":{}}')])
def test_an_object_of_any_depth_can_be_read_listed_and_printed(start: str, end: str, depth: int) -> None:
    deep = f'{{"metadata":{{"namespace":"n","name":"deep"}},"spec":{{"template":{start * depth}1{end * depth}}},"status":{{"phase":"Running"}}}}'
    items = decoded(DDPJOBS, f'{{"items":[{deep},{{"metadata":{{"name":"next"}}}}]}}'.encode())["items"]
    assert items[1] == {"metadata": {"name": "next"}}
    job = read_job(items[0])
    assert (job.name, job.phase) == ("deep", "Running")
    for reader in (json_text, yaml_text, redacted):
        assert reader(job.body)


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        decoded(PODS, b'{"metadata":{"a":1,"managedFields":[{}]},"spec":')


TEXT = b"one\n\ntwo\n" + b"x" * 20 + b"\nthe rest"


async def lines(pieces: Iterable[bytes], limit: int | None = None) -> list[bytes]:
    async def read() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    response: Any = SimpleNamespace(content=SimpleNamespace(iter_any=read))
    return [line async for line in lines_of(response, limit)]


@pytest.mark.parametrize("size", [1, 2, 5, 100])
async def test_lines_do_not_depend_on_the_pieces(size: int) -> None:
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    assert await lines(pieces) == TEXT.split(b"\n")[:-1]
    assert await lines(pieces, limit=1000) == TEXT.split(b"\n")


async def test_a_line_above_the_limit_comes_in_parts() -> None:
    assert await lines([b"x" * 6] * 5, limit=10) == [b"x" * 12, b"x" * 12, b"x" * 6]


async def test_what_is_there_of_a_long_line_is_not_copied_with_each_piece() -> None:
    """An event of a megabyte, as a tenant can make them, stopped the operator for 0.1 to 0.6 s."""
    num_copied = 0

    class Piece(bytes):
        def __radd__(self, before: bytes) -> bytes:
            nonlocal num_copied
            num_copied += len(before)
            return bytes(before) + bytes(self)

    pieces = [Piece(b"x" * 1000) for _ in range(100)]
    assert await lines([*pieces, b"\n"]) == [b"x" * 100_000]
    assert num_copied <= 100_000


@pytest.mark.parametrize(
    ("environment", "proxied"),
    [
        ({}, False),
        ({"https_proxy": "http://proxy:3128"}, True),
        ({"http_proxy": "http://proxy:3128"}, False),
        ({"https_proxy": "http://proxy:3128", "no_proxy": ".example.org"}, False),
    ],
)
def test_a_proxy_is_used_as_the_environment_says(
    environment: dict[str, str], proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_proxied("https://api.example.org:6443") is proxied


class Scripted(Connection):
    """A connection to nowhere, whose reads are answered as the test says."""

    def __init__(self, answers: list[int | bytes]) -> None:
        super().__init__(Configuration(), lambda: True, lambda *_: None, "test")
        self._answers = iter(answers)
        self.num_read = 0

    async def read(self, request: Request) -> bytes:
        self.num_read += 1
        answer = next(self._answers)
        if isinstance(answer, int):
            raise errors.error_of(str(request), answer, b"", None)
        return answer


@pytest.mark.parametrize(
    ("verb", "answers", "num_read", "succeeds"),
    [
        ("list", [503, 502, b"{}"], 3, True),
        ("list", [503, 502, 504, b"{}"], 3, False),
        ("list", [401, b"{}"], 1, False),
        ("create", [503, b"{}"], 1, False),
    ],
)
async def test_only_a_read_that_the_server_failed_is_sent_again(
    verb: str, answers: list[int | bytes], num_read: int, succeeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpjob_operator.transport.connection.READ_PAUSES_SECONDS", (0.0, 0.0))
    connection = Scripted(answers)
    with nullcontext() if succeeds else pytest.raises(errors.UnavailableError):
        assert await connection.json(Request(verb=verb, resource=PODS, path="/api/v1/pods")) == {}
    assert connection.num_read == num_read
    await connection.close()


async def test_a_process_without_the_lease_sends_no_write() -> None:
    connection = Connection(Configuration(), lambda: False, lambda *_: None, "test")
    with pytest.raises(errors.UnavailableError, match="does not hold the Lease"):
        await connection.json(Request(verb="create", resource=PODS, path="/api/v1/pods"))
    await connection.close()


SERVER: Any = SimpleNamespace(host="10.0.0.1", port=6443, ssl=True)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            aiohttp.ClientConnectorError(SERVER, OSError(111, "Connect call failed ('10.0.0.1', 6443)")),
            "no connection to 10.0.0.1:6443 (Connection refused)",
        ),
        (
            aiohttp.ClientConnectorDNSError(SERVER, OSError(-2, "Name or service not known")),
            "no connection to 10.0.0.1:6443 (Name or service not known)",
        ),
        (
            aiohttp.ClientConnectorError(SERVER, OSError("Multiple exceptions: [Errno 111] Connect call failed")),
            "no connection to 10.0.0.1:6443 (Multiple exceptions: [Errno 111] Connect call failed)",
        ),
        (TimeoutError(), "TimeoutError"),
        (aiohttp.ServerDisconnectedError(), "Server disconnected"),
    ],
)
def test_a_failed_connection_names_the_server_and_the_reason_of_the_operating_system(
    error: Exception, message: str
) -> None:
    assert reason_of(error) == message
