"""The texts are what python 3.11 and torchrun of torch 2.15 printed, with paths shortened."""

import pytest

from ddpjob_operator.core.failure.log_parsing import (
    end_of_log,
    is_echo,
    is_out_of_memory,
    is_timeout,
    last_exception,
)
from ddpjob_operator.core.model import WorkerExit

PLAIN = """\
epoch 0 step 10
Traceback (most recent call last):
  File "/app/plain.py", line 3, in <module>
    f()
  File "/app/plain.py", line 2, in f
    def f(): raise KeyError("x")
             ^^^^^^^^^^^^^^^^^^^
KeyError: 'x'
"""

PLACE = 'def f(): raise KeyError("x") in /app/plain.py, line 2'

RANK_1 = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/boom.py", line 6, in <module>
[rank1]:     raise ValueError("boom of rank 1")
[rank1]: ValueError: boom of rank 1
"""

RANK_0_ECHO = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/boom.py", line 8, in <module>
[rank0]:     t=torch.ones(1); dist.all_reduce(t);
[rank0]:                      ^^^^^^^^^^^^^^^^^^
[rank0]:   File "/opt/torch/distributed/distributed_c10d.py", line 4181, in all_reduce
[rank0]:     work.wait()
[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer \
[127.0.0.1]:27323. This is typically caused by a remote worker crashing.
"""

TORCHRUN = """\
W1121 15:37:30.356000 30556 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 30740 closing signal
E1121 15:37:30.528000 30556 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/opt/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "/opt/torch/distributed/launcher/api.py", line 386, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
boom.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_15:37:30
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 30740)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 30740
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_15:37:30
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 30744)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(
    ("text", "exception"),
    [
        (PLAIN, "KeyError: 'x'"),
        (PLAIN + "cleaning up\n", "KeyError: 'x'"),
        (PLAIN + PLAIN.replace("KeyError: 'x'", "mine.errors.Late"), f"mine.errors.Late ({PLACE})"),
        (
            PLAIN.replace("    def f()", "    " + "x" * 3000).replace("KeyError: 'x'", "E"),
            f"E ({'x' * 200} in /app/plain.py, line 2)",
        ),
        (RANK_1 + RANK_0_ECHO + TORCHRUN.format(code=1), "ValueError: boom of rank 1"),
        (RANK_0_ECHO + RANK_1 + TORCHRUN.format(code=1), "ValueError: boom of rank 1"),
        (TORCHRUN.format(code=1), ""),
        (TORCHRUN.format(code=1)[-900:], ""),
        ("no traceback here", ""),
        ("", ""),
        ("Traceback (most recent call last):\n", ""),
        ("Traceback (most recent call last):\n  File", ""),
    ],
)
def test_the_exception_is_the_workers_and_never_torchruns_own(text, exception) -> None:
    assert last_exception(text) == exception


def test_who_waits_at_a_monitored_barrier_only_names_the_cause() -> None:
    waits = "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms"
    assert is_echo(waits)
    assert is_timeout(waits)


def test_interleaved_tracebacks_of_two_ranks_are_separated() -> None:
    first, second = RANK_1.splitlines(), RANK_0_ECHO.splitlines()
    mixed = [line for pair in zip(first, second, strict=False) for line in pair] + second[len(first) :]
    assert last_exception("\n".join(mixed)) == "ValueError: boom of rank 1"


def test_an_echo_alone_is_the_exception_and_is_recognised() -> None:
    exception = last_exception(RANK_0_ECHO)
    assert "Connection closed by peer" in exception
    assert is_echo(exception)


SHARED_MEMORY = (
    "torch.distributed.DistBackendError: NCCL error: unhandled system error, ncclSystemError\n"
    "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space left on device (28)"
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        # What the newer NCCL backend reports of a lost rank.
        ("RuntimeError: NCCL operation timed out", True),
        ("[E] [rank 1] nccl hit async error on rank 1: remote process exited or there was a network error", True),
        ("ValueError: boom", False),
        ("KeyError: 'x'", False),
        ("ConnectionError: no such dataset", False),
        (SHARED_MEMORY, False),
        ("", False),
    ],
)
def test_only_the_loss_of_another_rank_is_an_echo(error, expected) -> None:
    assert is_echo(error) == expected


@pytest.mark.parametrize(
    ("code", "expected"), [("7", WorkerExit(code=7, signal=None)), ("-9", WorkerExit(code=137, signal=9))]
)
def test_the_exit_of_the_worker_is_read_from_torchruns_table(code, expected) -> None:
    assert end_of_log(TORCHRUN.format(code=code)).worker == expected


@pytest.mark.parametrize("text", [PLAIN, TORCHRUN.format(code="9" * 5000)])
def test_a_log_without_a_readable_table_has_no_exit(text) -> None:
    assert end_of_log(text).worker is None


def test_a_carriage_return_in_a_name_is_shown_as_bash_shows_it() -> None:
    """A script that Windows saved names files that do not exist; a progress bar ends a state with such a character."""
    assert (
        end_of_log("10%\r20%\rsh: can't open file '/w/t.py\r': [Errno 2]\r\n").last_line
        == r"sh: can't open file '/w/t.py\r': [Errno 2]"
    )


def test_the_last_line_is_the_last_that_is_not_blank() -> None:
    assert end_of_log("first\nsh: train.py: not found\n\n  \n").last_line == "sh: train.py: not found"


@pytest.mark.parametrize(
    "text",
    [
        RANK_0_ECHO,
        "x\nNCCL WARN nccl internal\n" * 40,
        "std::bad_alloc\nabort",
        "server socket has failed to listen: connection closed by peer",
        "collective operation timeout",
        "nothing",
    ],
)
def test_symptoms_say_of_a_log_what_its_whole_text_says(text) -> None:
    symptoms = end_of_log("line before\n" + text).symptoms
    for says in (is_echo, is_timeout, is_out_of_memory):
        assert says(symptoms) == says(text)


@pytest.mark.parametrize(
    ("log", "exception"),
    [
        (PLAIN + "tensor([" + "0.1, " * 400_000 + "])\n", "KeyError: 'x'"),
        (PLAIN + ("weights " + "0.1, " * 20_000 + "\n") * 20, "KeyError: 'x'"),
        ("tensor([" + "0.1, " * 400_000 + "])\n" + PLAIN, "KeyError: 'x'"),
    ],
    ids=["one line after it", "several lines after it", "before it"],
)
def test_a_line_of_megabytes_does_not_hide_the_exception(log: str, exception: str) -> None:
    assert end_of_log(log).exception == exception


def test_an_exception_with_a_message_of_megabytes_has_its_type_and_its_end() -> None:
    found = end_of_log(PLAIN.replace("KeyError: 'x'", "ValueError: bad input " + "0.1, " * 400_000 + "is not finite"))
    assert found.exception.startswith("ValueError: bad input 0.1")
    assert found.exception.endswith("0.1, is not finite")


def test_an_exception_that_the_logging_handler_of_rich_wraps_is_one_line() -> None:
    column = " " * 29
    text = (
        "[11/27/26 01:43:47] ERROR    training failed                      train.py:26\n"
        f"{column}╭─ Traceback (most recent call last) ─╮\n{column}│ /app/train.py:8 in train           │\n"
        f"{column}╰────────────────────────────────────╯\n"
        f"{column}ValueError: label 12 is out of range\n{column}for 10 classes\nepoch 3\n"
    )
    assert last_exception(text) == "ValueError: label 12 is out of range for 10 classes"
