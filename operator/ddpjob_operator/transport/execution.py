"""A command in a container: the frames of the API server's WebSocket (v4.channel.k8s.io), and what they add up to."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

PROTOCOL: Final = "v4.channel.k8s.io"
_OUTPUT, _ERRORS, _STATUS = 1, 2, 3
#: What a command prints beyond this is not kept.
MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a command ended and what it printed."""

    exit_code: int | None
    """None if the command could not be started; `errors` says why."""
    output: str
    errors: str


def query(container: str, command: Sequence[str]) -> str:
    """The parameters of the request."""
    fixed = [("container", container), ("stdout", "true"), ("stderr", "true")]
    return urlencode([*fixed, *(("command", word) for word in command)])


async def collect(frames: AsyncIterator[bytes]) -> Execution:
    """What the frames say, each of which begins with the number of its channel."""
    channels = {_OUTPUT: bytearray(), _ERRORS: bytearray(), _STATUS: bytearray()}
    async for frame in frames:
        channel = channels.get(frame[0]) if frame else None
        if channel is not None:
            channel += frame[1 : 1 + MAX_BYTES - len(channel)]
    output, errors, status = (channels[number].decode(errors="replace") for number in (_OUTPUT, _ERRORS, _STATUS))
    code, message = _ended(status)
    return Execution(exit_code=code, output=output, errors=errors if code is not None else f"{errors}{message}")


def _ended(text: str) -> tuple[int | None, str]:
    """Exit code and message of the Status object at the end."""
    try:
        status: Any = json.loads(text)
    except ValueError:
        return None, text or "the connection ended before the command did"
    if status.get("status") == "Success":
        return 0, ""
    causes = (status.get("details") or {}).get("causes") or ()
    code = next((cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"), "")
    return (int(code) if str(code).isdecimal() else None), str(status.get("message", ""))
