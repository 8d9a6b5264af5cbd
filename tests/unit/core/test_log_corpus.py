"""What the operator says of what real programs print: one row for each log of tests/corpus.

`hack/record_logs.py` records the logs by running the programs next to them; the first line of each says with which versions.
A message is the exception, or else the last line that the program printed.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.plan import plan
from support.builders import NOW, broken, ended, job

LOGS = Path(__file__).parents[2] / "corpus" / "logs"
FAULT = "ValueError: label 12 is out of range for 10 classes"
PATH = "config error: data folder /data is empty"
USAGE = "arguments.py: error: argument --lr: invalid float value: 'fast'"
NO_SCRIPT = "/opt/venv/bin/python: can't open file '/app/no_such_script.py': [Errno 2] No such file or directory"
NO_MODULE = "ModuleNotFoundError: No module named 'module_that_nobody_has'"
SYNTAX = "SyntaxError: '(' was never closed"
INCOMPLETE = "ValueError: the configuration is incomplete (from KeyError: 'momentum')"
MEMBER = "ValueError: shard 3 is truncated"
LOST = "RuntimeError: Connection closed by peer"
RESET = "[Errno 104] Connection reset by peer"
WORKER_KILLED = "killed by signal: Killed"
FELL = "Fatal Python error: Segmentation fault in string_at"
ASSERTED = "what(): CUDA error: device-side assert triggered"
INVALID = "pydantic_core._pydantic_core.ValidationError: 1 validation error for"
ERROR, MEMORY = Reason.PROGRAM_ERROR, Reason.OUT_OF_MEMORY

#: Log, rank, class and message; a message that ends with … only begins so.
TABLE = [
    ("arguments", None, Reason.BAD_CONFIG, USAGE),
    ("arguments-torchrun", 0, Reason.BAD_CONFIG, USAGE),
    ("exit-text-torchrun", 0, ERROR, PATH),
    ("exit-text-torchrun-2.11", 0, ERROR, PATH),
    ("syntax-error", None, Reason.BAD_CONFIG, SYNTAX),
    ("syntax-error-torchrun", 0, Reason.BAD_CONFIG, SYNTAX),
    ("missing-script", None, Reason.BAD_COMMAND, NO_SCRIPT),
    ("missing-script-torchrun", 0, Reason.BAD_COMMAND, NO_SCRIPT),
    ("missing-module", None, Reason.BAD_CONFIG, NO_MODULE),
    ("missing-module-torchrun", 0, Reason.BAD_CONFIG, NO_MODULE),
    ("sigkill-torchrun", 1, Reason.KILLED, ""),
    ("sigsegv-torchrun", 1, Reason.KILLED, ""),
    ("raised-torchrun", 1, ERROR, FAULT),
    ("raised-torchrun-2.11", 1, ERROR, FAULT),
    ("lost-peer", 0, Reason.COLLECTIVE_ERROR, f"{LOST}…"),
    ("lost-peer-and-noise", 0, Reason.COLLECTIVE_ERROR, f"{LOST}…"),
    ("noise-del", None, ERROR, FAULT),
    ("noise-atexit", None, ERROR, FAULT),
    ("noise-atexit-3.13", None, ERROR, FAULT),
    ("noise-finally", None, ERROR, f"{FAULT} (then RuntimeError: the run has been closed)"),
    ("noise-thread", None, ERROR, FAULT),
    ("noise-thread_first", None, ERROR, FAULT),
    ("noise-logging", None, ERROR, FAULT),
    ("noise-excepthook", None, ERROR, FAULT),
    ("chained-from", None, ERROR, INCOMPLETE),
    ("chained-while-handling", None, ERROR, INCOMPLETE),
    ("group-tasks", None, ERROR, MEMBER),
    ("group-bare", None, ERROR, MEMBER),
    ("group-nested", None, ERROR, MEMBER),
    ("group-tasks-torchrun", 0, ERROR, MEMBER),
    ("group-tasks-colours-3.13", None, ERROR, MEMBER),
    ("data-worker-raises", None, ERROR, "ValueError: image 5 is truncated"),
    ("data-worker-killed", None, MEMORY, "RuntimeError: DataLoader worker…"),
    ("data-worker-bus", None, MEMORY, "RuntimeError: DataLoader worker…"),
    ("network-reset", None, ERROR, f"ConnectionResetError: {RESET}"),
    ("network-requests", None, ERROR, "requests.exceptions.ConnectionError: ('Connection aborted.'…"),
    ("network-refused", None, ERROR, "requests.exceptions.ConnectionError: HTTPConnectionPool…"),
    ("network-timeout", None, ERROR, "TimeoutError: timed out"),
    ("network-pipe", None, ERROR, "BrokenPipeError: [Errno 32] Broken pipe"),
    ("network-library", None, ERROR, "RuntimeError: curl request to https://bucket failed: Connection reset by peer"),
    ("memory-numpy", None, MEMORY, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 64.0 TiB…"),
    ("memory-torch", None, MEMORY, "RuntimeError: [enforce fail at alloc_cpu.cpp:127]…"),
    ("memory-python", None, MEMORY, "MemoryError…"),
    ("memory-mmap", None, MEMORY, "OSError: [Errno 12] Cannot allocate memory…"),
    ("memory-shared", None, MEMORY, "RuntimeError: unable to write to file </torch_1_2_3>…"),
    ("wrapper-spawn", None, ERROR, FAULT),
    ("wrapper-subprocess", None, ERROR, FAULT),
    ("wrapper-pool", None, ERROR, FAULT),
    ("rich-handler", None, ERROR, FAULT),
    ("rich", None, ERROR, FAULT),
    ("rich-colours", None, ERROR, FAULT),
    ("loguru", None, ERROR, FAULT),
    ("loguru-colours", None, ERROR, FAULT),
    ("crash-faulthandler", None, Reason.KILLED, f"{FELL} (/usr/local/lib/python3.11/ctypes/__init__.py:519)"),
    ("crash-faulthandler-3.13", None, Reason.KILLED, f"{FELL} (/usr/local/lib/python3.13/ctypes/__init__.py:538)"),
    ("crash-faulthandler-torchrun", 0, Reason.KILLED, f"{FELL}…"),
    ("crash-time-limit", None, ERROR, "Timeout (0:00:00.100000)!"),
    ("crash-glibc", None, Reason.KILLED, "free(): double free detected in tcache 2"),
    ("crash-c10", None, Reason.KILLED, ASSERTED),
    ("crash-c10-torchrun", 0, Reason.KILLED, ASSERTED),
    ("crash-glog", None, Reason.KILLED, "F20261127 07:00:00.123456 123 reader.cc:33] Check failed: fd >= 0…"),
    ("crash-rust", None, Reason.KILLED, "index out of bounds: the len is 3 but the index is 7"),
    ("usage-click", None, Reason.BAD_CONFIG, "Error: Invalid value for '--rate': 'fast' is not a valid float."),
    ("usage-typer", None, Reason.BAD_CONFIG, "Missing argument 'rate'."),
    ("usage-absl", None, Reason.BAD_CONFIG, "FATAL Flags parsing error: Unknown command line flag 'rate'"),
    ("usage-fire", None, Reason.BAD_CONFIG, "ERROR: Could not consume arg: --speed"),
    ("usage-hydra", None, Reason.BAD_CONFIG, "Key 'rate' is not in struct"),
    ("record-structlog", None, ERROR, FAULT),
    ("record-structlog-torchrun", 1, ERROR, FAULT),
    ("record-structlog-fields", None, ERROR, FAULT),
    ("record-json-logger", None, ERROR, FAULT),
    ("record-loguru", None, ERROR, FAULT),
    ("record-srun", None, ERROR, FAULT),
    ("record-mpirun", None, ERROR, FAULT),
    ("record-times", None, ERROR, FAULT),
    ("afterwards-semaphores", None, ERROR, PATH),
    ("afterwards-wandb", None, ERROR, PATH),
    ("message-pydantic", None, ERROR, f"{INVALID} Settings rate Input should be a valid number…"),
    ("message-nccl-cuda", None, ERROR, "torch.distributed.DistBackendError: NCCL error in: …"),
    ("message-nccl-shared-memory", None, MEMORY, "torch.distributed.DistBackendError: NCCL error in: …"),
    ("message-unicode", None, ERROR, "ÜberlaufError: 标签 12 超出范围 🚀"),
    ("plain-3.12", None, ERROR, FAULT),
    ("plain-3.13", None, ERROR, FAULT),
    ("plain-colours-3.13", None, ERROR, FAULT),
]


def _recorded(name: str) -> tuple[int, str]:
    first, _, log = (LOGS / f"{name}.log").read_text().partition("\n")
    code = int(first.removeprefix("# exit code ").partition(";")[0])
    return 128 - code if code < 0 else code, log  # as a kubelet reports a signal


@pytest.mark.parametrize(("name", "rank", "reason", "message"), TABLE, ids=[row[0] for row in TABLE])
def test_the_cause_is_what_the_program_says(name: str, rank: int | None, reason: Reason, message: str) -> None:
    code, log = _recorded(name)
    of = job(nodes=1, processesPerNode=2, command=["torchrun", "t.py"])
    # A kubelet takes the end of the log as the termination message.
    pod = ended(of, 0, code=code, message=log[-2048:])
    status = plan(replace(broken(of, pod), logs={pod.uid: end_of_log(log)}), NOW + 2).status
    assert status.failure is not None
    assert (status.failure.global_rank, status.failure.reason) == (rank, reason)
    found = status.failure.message
    assert found.startswith(message[:-1]) if message.endswith("…") else found == message


def test_each_log_has_a_row() -> None:
    assert sorted(row[0] for row in TABLE) == sorted(path.stem for path in LOGS.iterdir())


def test_noise_after_an_echo_does_not_make_it_the_cause() -> None:
    of = job(nodes=2, command=["python", "t.py"])
    _, echo = _recorded("lost-peer-and-noise")
    _, fault = _recorded("noise-del")
    first = ended(of, 0, code=1, message=echo, ended_seen=NOW - 5)
    second = ended(of, 1, code=1, message=fault, ended_seen=NOW - 4)
    status = plan(broken(of, first, second), NOW).status
    assert status.failure is not None
    assert (status.failure.global_rank, status.failure.message) == (1, FAULT)
