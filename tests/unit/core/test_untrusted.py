"""What programs and the cluster write: what of it is shown, and that no megabyte of it is slow to parse."""

import gc
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.failure.cause import ends_of, wanted_logs
from ddpjob_operator.core.failure.log_parsing import (
    end_of_log,
    is_echo,
    is_out_of_memory,
    is_timeout,
    last_exception,
)
from ddpjob_operator.core.failure.messages import end_message
from ddpjob_operator.core.gang import gang_of
from ddpjob_operator.core.model import Rejection, Waiting
from ddpjob_operator.core.policies.obstacles import explain_wait
from ddpjob_operator.core.progress import latest_progress
from ddpjob_operator.core.untrusted import MAX_PARSED_LENGTH, MAX_PARSED_LINES, printable, visible
from support.builders import ended, job, observed, pod


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain text, ünïcödé 数字\tand tabs", "plain text, ünïcödé 数字\tand tabs"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x9b31mred", "red"),
        ("\x1bPdevice string\x1b\\x", "x"),
        ("\x1bcreset", "reset"),
        (" 10 %\r 55 %\r100 %", "100 %"),
        ("ends like Windows\r", "ends like Windows"),
        ("bell\x07 null\x00 delete\x7f", "bell null delete"),
        ("right\u202etfel\u2066\u200f", "righttfel"),
        ("[bold]no markup[/bold]", "[bold]no markup[/bold]"),
    ],
)
def test_only_what_can_be_seen_remains(line: str, expected: str) -> None:
    assert visible(line) == expected
    assert printable(line) == expected.replace("\t", " ").strip()


@given(st.text(st.characters(categories=["Cc", "Cf", "L", "Z"], exclude_characters="\u00ad")))
def test_no_control_character_or_bidirectional_mark_ever_remains(text: str) -> None:
    bidirectional = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    for shown in (visible(text).replace("\t", ""), printable(text)):
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in bidirectional for c in shown)


def test_text_for_a_status_is_one_line_of_bounded_length() -> None:
    assert printable("\x1b[31mred\x1b[0m\x07\r\n  text") == "red text"
    assert len(printable("x" * 5000)) == 1024


PROGRAM = job(command=["python", "train.py"])
TRAINER = job()


def _failed(of, **exit_):
    return lambda text: ends_of(observed(of), [ended(of, 0, message=text, **exit_)], 0.0)


def _failed_with_log(text):
    failed = ended(PROGRAM, 0, code=134)
    return ends_of(observed(PROGRAM, failed, logs={failed.uid: end_of_log(text)}), [failed], 0.0)


def _message_of(reason):
    def message(text):
        failed = ended(PROGRAM, 0, code=128, message=text, exit_reason="StartError")
        return end_message(observed(PROGRAM), failed, reason)

    return message


def _waits(reason, node="node-0"):
    def waits(text):
        held = pod(PROGRAM, running=False, node=node, waiting=Waiting(reason=reason, message=text))
        seen = observed(PROGRAM, held)
        return explain_wait(seen, gang_of(seen, 1))

    return waits


def _refused(text):
    seen = observed(PROGRAM, rejections={"job-1-0": Rejection(text)})
    return explain_wait(seen, gang_of(seen, 1))


PARSERS = {
    "latest_progress": latest_progress,
    "last_exception": last_exception,
    "last_line": lambda text: end_of_log(text).last_line,
    "printable": printable,
    "visible": visible,
    "is_echo": is_echo,
    "is_timeout": is_timeout,
    "is_out_of_memory": is_out_of_memory,
    "an end of a program": _failed(PROGRAM, code=1),
    "an end of the trainer": _failed(TRAINER, code=1),
    "an end by SIGABRT": _failed(TRAINER, code=134),
    "an end by a lost peer": _failed(TRAINER, code=69),
    "a log": _failed_with_log,
    "a program that cannot start": _message_of(Reason.BAD_COMMAND),
    "wanted logs": lambda text: wanted_logs(observed(PROGRAM), [ended(PROGRAM, 0, code=1, message=text)]),
    "an image": _waits("ErrImagePull"),
    "a container": _waits("CreateContainerError"),
    "the scheduler": _waits("Unschedulable", node=None),
    "a quota": _refused,
}

PIECES = {
    "nothing": " ",
    "lines": "\n",
    "carriage returns": "x\r",
    "a long word": "x",
    "a long number": "1",
    "progress prefixes": "ddpjob-progress {",
    "empty progress lines": "ddpjob-progress {}\n",
    "nested objects": 'ddpjob-progress {"step":' + "[" * 900 + "\n",
    "tracebacks": "Traceback (most recent call last):\n",
    "tracebacks of ranks": '[rank1]: Traceback (most recent call last):\n[rank0]:   File "x"\n',
    "frames": '  File "x", line 1\n',
    "prefixes of ranks": "[rank1]:",
    "exceptions": "Traceback (most recent call last):\nValueError: x\n",
    "groups": "  + Exception Group Traceback (most recent call last):\n  | ExceptionGroup: x (2 sub-exceptions)\n",
    "members": "  +-+---------------- 1 ----------------\n    | ValueError: x\n",
    "framed": "╭─ Traceback (most recent call last) ─╮\n│ x │\n╰──╯\nValueError: x\n",
    "chained": 'Traceback (most recent call last):\n  File "x", line 1, in f\nValueError: x:\n\n'
    "During handling of the above exception, another exception occurred:\n\n",
    "ignored": "Exception ignored in: x\nTraceback (most recent call last):\nValueError: x\n",
    "shared memory": "unable to open /torch_",
    "devices": "/dev/shm",
    "brackets": "[x]:",
    "torchrun's own": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
    "tables": "Root Cause (first observed failure):",
    "exit codes": "  exitcode  : ",
    "exit codes of many digits": "exitcode  : 1 (pid: 1",
    "sources": "[/",
    "escapes": "\x1b[",
    "open escapes": "\x1b]",
    "timeouts": "Timed out waiting 1",
    "runtimes": "unable to start container process",
    "headers": "rank 1 lost a peer",
    "preemption": "  preemption:",
    "quotas": "exceeded quota: q, requested: ",
    "used": ", used: ",
    "limited": ", used: , limited: ",
    "nodes": "0/1 nodes are available: 1 ",
    "images": 'image "',
    "layers": ": ",
}
#: What makes a piece expensive is often the text before it, or that its end is missing.
HOSTILE = [
    *(("{}", piece) for piece in PIECES.values()),
    ("ddpjob-progress {{{}}}x", "}"),
    ("Root Cause (first observed failure):{}", "\n"),
    ("Root Cause (first observed failure):{}", "exitcode : "),
    ("Traceback (most recent call last):\n{}\nValueError: x", '  File "x"\n'),
    ("Traceback (most recent call last):\n{}", "a.b"),
    ("exceeded quota: q, requested: a=1{}, limited:", ", used: "),
    ("0/1 nodes are available: {}", "\n"),
    ('image "x": {}', ": "),
]


def _hostile(frame, piece, length):
    text = frame.format(piece * (length // len(piece)))
    assert length / 2 <= len(text) <= length * 2
    return text


def _seconds(parse: Callable[[str], object], text: str) -> float:
    """CPU time of this thread, so that other processes do not count."""
    began = time.thread_time()
    parse(text)
    return time.thread_time() - began


@pytest.mark.parametrize("name", PARSERS)
def test_no_text_costs_more_than_in_proportion_to_its_length(name: str) -> None:
    """Sixteen times the text may cost 64 times the CPU time; with a quadratic parser it costs 256 times as much."""
    gc.collect()
    for frame, piece in HOSTILE:
        seconds = 0.0005  # what the clock and a first call cost
        for length in (2**12, 2**16, 2**20):
            took = _seconds(PARSERS[name], _hostile(frame, piece, length))
            assert took <= 64 * seconds, f"{length} characters of {piece!r} in {frame!r}"
            seconds = max(seconds, took)


@pytest.mark.parametrize(
    "padding", [("x" * 63 + "\n") * (MAX_PARSED_LENGTH // 64), "\n" * MAX_PARSED_LINES], ids=["text", "lines"]
)
def test_only_the_end_of_a_text_is_parsed(padding: str) -> None:
    error = "Traceback (most recent call last):\nValueError: x\n"
    assert (last_exception(padding + error), last_exception(error + padding)) == ("ValueError: x", "")


@pytest.mark.parametrize("name", ["last_exception", "last_line", "printable"])
@pytest.mark.parametrize("piece", PIECES.values())
def test_what_goes_into_a_status_is_short_and_printable(name, piece) -> None:
    shown = PARSERS[name](_hostile("Traceback (most recent call last):\n  File\nE: {}", piece, 2**20))
    assert len(shown) <= 1024
    assert shown.isprintable()
