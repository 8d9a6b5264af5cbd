"""The frames of a command in a container."""

import json
from collections.abc import AsyncIterator

import pytest

from ddpjob_operator.transport.execution import MAX_BYTES, Execution, collect, query


async def frames(*sent: bytes) -> AsyncIterator[bytes]:
    for frame in sent:
        yield frame


def status(**fields: object) -> bytes:
    return b"\x03" + json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([b"\x01a", b"\x02e", b"\x01b", status(status="Success")], Execution(exit_code=0, output="ab", errors="e")),
        (
            [status(status="Failure", details={"causes": [{"reason": "ExitCode", "message": "7"}]})],
            Execution(exit_code=7, output="", errors=""),
        ),
        (
            [status(status="Failure", message="no such file")],
            Execution(exit_code=None, output="", errors="no such file"),
        ),
        (
            [b"", b"\x01a", b"\x09?"],
            Execution(exit_code=None, output="a", errors="the connection ended before the command did"),
        ),
    ],
)
async def test_output_and_exit_code(sent: list[bytes], expected: Execution) -> None:
    assert await collect(frames(*sent)) == expected


async def test_output_is_bounded() -> None:
    half = b"\x01" + b"x" * (MAX_BYTES // 2 + 1)
    assert len((await collect(frames(half, half, half))).output) == MAX_BYTES


def test_no_word_of_a_command_is_interpreted() -> None:
    assert query("trainer", ["echo", "a b", "$HOME;&"]).endswith("command=echo&command=a+b&command=%24HOME%3B%26")
