"""The last thing that a program said of its end, where it printed no traceback.

Libraries print more after it: the frames of a crash, where help is found, warnings of the interpreter. Such lines are never
the cause, so the line before them is what counts.
"""

import re
from collections.abc import Sequence

from ddpjob_operator.core.untrusted import printable

#: Lines that only follow: stacks of C++ (torch, glog), of faulthandler and hints of Rust, CUDA, Hydra, absl and fire; what
#: W&B prints at the end of a run; warnings of the interpreter with their source line.
_FOLLOWS = re.compile(
    r"\s*(?:frame #\d+: |Exception raised from \S+ at |@ +(?:0x[0-9a-f]+|\(nil\))|\*\*\* Check failure stack trace"
    r'|File "[^"]*", line \d+|Binary file "|<(?:truncated rest of calls|no Python frame)>|Extension modules: |Stack \(most recent'
    r"|(?:Current thread|Thread) 0x[0-9a-f]+|Current thread's C stack"
    r"|note: run with `RUST_BACKTRACE"
    r"|CUDA kernel errors might be |For debugging consider passing |Compile with `TORCH_USE_CUDA_DSA`|Search for `cuda"
    r"|Set the environment variable HYDRA_FULL_ERROR|full_key: |object_type="
    r"|Pass --help|For detailed information on this command, run:|\S+ (?:\S+ )?--help$"
    r"|wandb: (?!ERROR)|wandb:$|\S+:\d+: \w*Warning: |warnings\.warn\()"
)
#: What a process says as it ends itself: C++, glibc, glog, faulthandler.
_CRASH = re.compile(
    r"what\(\): |terminate called |Fatal Python error: |.{0,400}Assertion .{0,400} failed|.{0,99}\bCheck failed: "
    r"|double free|free\(\): |malloc\(\): |corrupted |munmap_chunk\(\)|\*\*\* stack smashing"
)
_FATAL = "Fatal Python error: "
_FRAME = re.compile(r'\s*File "([^"]*)", line (\d+) in (\S+)$')


def last_line(lines: Sequence[str]) -> str:
    """The last line that holds more than a rule and that does not only follow another one; printable."""
    said = [at for at, line in enumerate(lines) if any(map(str.isalnum, line))]
    at = next((at for at in reversed(said) if not _FOLLOWS.match(lines[at])), said[-1] if said else None)
    if at is None:
        return ""
    if lines[at].startswith("Usage: ") and lines[at - 1 : at] and lines[at - 1].startswith("ERROR: "):  # of fire
        at -= 1
    shown = printable(lines[at])
    if shown.startswith("│"):  # typer and rich frame it
        return shown.strip("│ ")
    return f"{shown}{_place(lines[at:])}" if shown.startswith(_FATAL) else shown


def is_crash(line: str) -> bool:
    """Whether the last line says why a process ended itself."""
    return _CRASH.match(line) is not None


def _place(lines: Sequence[str]) -> str:
    """Where faulthandler says that the thread was which caused the error."""
    current = next((at for at, line in enumerate(lines) if line.startswith("Current thread ")), None)
    frame = _FRAME.match(lines[current + 1]) if current is not None and current + 1 < len(lines) else None
    return " " + printable(f"in {frame[3]} ({frame[1]}:{frame[2]})") if frame else ""
