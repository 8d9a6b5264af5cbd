"""What the message of a request without an answer says."""

from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from ddpjob_operator.transport.connection import reason_of

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
def test_it_names_the_server_and_the_reason_of_the_operating_system(error: Exception, message: str) -> None:
    assert reason_of(error) == message
