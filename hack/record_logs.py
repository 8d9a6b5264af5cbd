"""Records tests/corpus/logs again: what the programs of tests/corpus/programs print before they end.

    python hack/record_logs.py [--python 3.13=/opt/python3.13] [NAME…]

Each log begins with a line that says how the program ended, with which versions, and its command. A log whose
interpreter or package is not here is left as it is. Paths of this machine are replaced.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
#: What prints the versions that a program runs with.
VERSIONS = """
import importlib.metadata, platform
found = [f"python {platform.python_version()}"]
for name in ("torch", "numpy", "requests", "rich", "loguru", "click", "typer", "pydantic",
             "absl-py", "fire", "hydra-core", "structlog", "python-json-logger"):
    try:
        found.append(f"{name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        pass
print(", ".join(found))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29517")
TIMEOUT_SECONDS = 120
COLOURS = (("FORCE_COLOR", "1"),)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One log: a program with arguments, and how it is started."""

    arguments: tuple[str, ...]
    ranks: int = 0
    """How many processes run it without a launcher; the log is that of rank 0. 0: the program needs no rank."""
    launcher: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    python: str = ""
    """The version of the interpreter; empty for the one that runs this."""


def plain(*arguments: str, ranks: int = 0, python: str = "", is_coloured: bool = False) -> Recording:
    """A program that `python` runs."""
    return Recording(arguments=arguments, ranks=ranks, python=python, environ=COLOURS if is_coloured else ())


def torchrun(*arguments: str, python: str = "") -> Recording:
    """A program of two ranks of one node that torchrun runs."""
    return Recording(arguments=arguments, launcher=TORCHRUN, python=python)


RECORDINGS = {
    "arguments": plain("arguments.py"),
    "arguments-torchrun": torchrun("arguments.py"),
    "exit-text-torchrun": torchrun("exit_text.py"),
    "syntax-error": plain("syntax_error.py"),
    "syntax-error-torchrun": torchrun("syntax_error.py"),
    "missing-script": plain("no_such_script.py"),
    "missing-script-torchrun": torchrun("no_such_script.py"),
    "missing-module": plain("missing_module.py"),
    "missing-module-torchrun": torchrun("missing_module.py"),
    "sigkill-torchrun": torchrun("killed.py", "SIGKILL"),
    "sigsegv-torchrun": torchrun("killed.py", "SIGSEGV"),
    "raised-torchrun": torchrun("raised.py"),
    "raised-torchrun-2.11": torchrun("raised.py", python="torch-2.11"),
    "exit-text-torchrun-2.11": torchrun("exit_text.py", python="torch-2.11"),
    "lost-peer": plain("lost_peer.py", ranks=2),
    "lost-peer-and-noise": plain("noise_after_lost_peer.py", ranks=2),
    **{
        f"noise-{kind}": plain("noise.py", kind)
        for kind in ("del", "atexit", "finally", "thread", "thread_first", "logging", "excepthook")
    },
    "noise-atexit-3.13": plain("noise.py", "atexit", python="3.13"),
    "chained-from": plain("chained.py", "from"),
    "chained-while-handling": plain("chained.py", "while_handling"),
    **{f"group-{kind}": plain("groups.py", kind) for kind in ("tasks", "bare", "nested")},
    "group-tasks-torchrun": torchrun("groups.py", "tasks"),
    "group-tasks-colours-3.13": plain("groups.py", "tasks", python="3.13", is_coloured=True),
    **{f"data-worker-{kind}": plain("data_worker.py", kind) for kind in ("raises", "killed", "bus")},
    **{
        f"network-{kind}": plain("network.py", kind)
        for kind in ("reset", "requests", "refused", "timeout", "pipe", "library")
    },
    **{f"memory-{kind}": plain("memory.py", kind) for kind in ("numpy", "torch", "python", "mmap", "shared")},
    **{f"wrapper-{kind}": plain("wrappers.py", kind) for kind in ("spawn", "subprocess", "pool")},
    "rich-handler": plain("pretty.py", "rich_handler"),
    "rich": plain("pretty.py", "rich"),
    "rich-colours": plain("pretty.py", "rich", is_coloured=True),
    "loguru": plain("pretty.py", "loguru", python="3.12"),
    "loguru-colours": plain("pretty.py", "loguru", "colours", python="3.12"),
    **{
        f"crash-{kind}": plain("crashes.py", kind)
        for kind in ("faulthandler", "time-limit", "glibc", "c10", "glog", "rust")
    },
    "crash-c10-torchrun": torchrun("crashes.py", "c10"),
    "crash-faulthandler-torchrun": torchrun("crashes.py", "faulthandler"),
    "crash-faulthandler-3.13": plain("crashes.py", "faulthandler", python="3.13"),
    **{f"usage-{library}": plain("usage.py", library) for library in ("click", "typer")},
    **{f"usage-{library}": plain("usage.py", library, python="libraries") for library in ("absl", "fire", "hydra")},
    **{
        f"record-{kind}": plain("records.py", kind, python="libraries")
        for kind in ("structlog", "structlog-fields", "json-logger", "loguru")
    },
    **{f"record-{kind}": plain("records.py", kind) for kind in ("srun", "mpirun", "times")},
    "record-structlog-torchrun": torchrun("records.py", "structlog", python="libraries"),
    "afterwards-semaphores": plain("afterwards.py", "semaphores"),
    "afterwards-wandb": plain("afterwards.py", "wandb"),
    **{f"message-{kind}": plain("messages.py", kind) for kind in ("pydantic", "nccl-cuda", "nccl-shared-memory")},
    "message-unicode": plain("messages.py", "unicode"),
    "plain-3.12": plain("pretty.py", "plain", python="3.12"),
    "plain-3.13": plain("pretty.py", "plain", python="3.13"),
    "plain-colours-3.13": plain("pretty.py", "plain", python="3.13", is_coloured=True),
}


def main() -> None:
    """Record the logs that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="an interpreter by its name")
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of logs")
    options = parser.parse_args()
    pythons = {"": sys.executable, **dict(given.split("=", 1) for given in options.python)}
    for name in options.names or RECORDINGS:
        recording = RECORDINGS[name]
        if recording.python in pythons:
            (CORPUS / "logs" / f"{name}.log").write_text(record(recording, pythons[recording.python]))
        else:
            print(f"{name}: no --python {recording.python}=… is given; left as it is", file=sys.stderr)


def record(recording: Recording, python: str) -> str:
    """The log of one recording, with its first line."""
    environ = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29518",
        "COLUMNS": "160",
        **dict(recording.environ),
    }
    command = [python, *recording.launcher, *recording.arguments]
    others = [_start(command, environ, rank, recording.ranks, log=False) for rank in range(1, recording.ranks)]
    first = _start(command, environ, 0, recording.ranks, log=True)
    output, _ = first.communicate(timeout=TIMEOUT_SECONDS)
    for other in others:
        other.wait(timeout=TIMEOUT_SECONDS)
    versions = subprocess.run([python, "-c", VERSIONS], check=True, text=True, capture_output=True).stdout.strip()
    colours = " ".join(f"{name}={value}" for name, value in recording.environ)
    shown = " ".join(part for part in (colours, "python", *recording.launcher, *recording.arguments) if part)
    return f"# exit code {first.returncode}; {versions}; {shown}\n" + _without_paths(output.decode(), python)


def _start(command: list[str], environ: dict[str, str], rank: int, ranks: int, *, log: bool) -> subprocess.Popen[bytes]:
    of_rank = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)} if ranks else {}
    output = subprocess.PIPE if log else subprocess.DEVNULL
    return subprocess.Popen(
        command, cwd=CORPUS / "programs", env={**environ, **of_rank}, stdout=output, stderr=subprocess.STDOUT
    )


def _without_paths(output: str, python: str) -> str:
    """The output with the paths of an image instead of those of this machine."""
    prefixes = (
        "import os, sys; print(os.path.realpath(sys.prefix), sys.prefix, sys.base_prefix, sep='\\n');"
        "print(*{os.path.realpath(path).partition('/lib/')[0] for path in sys.path if 'site-packages' in path}, sep='\\n')"
    )
    asked = subprocess.run([python, "-c", prefixes], check=True, text=True, capture_output=True)
    real, prefix, base, *layers = asked.stdout.split()
    shown = {str(CORPUS / "programs"): "/app", real: "/opt/venv", prefix: "/opt/venv", base: "/usr/local"}
    shown |= dict.fromkeys(set(layers) - {base}, "/opt/venv")
    for path, instead in shown.items():
        output = output.replace(path, instead)
    return output


if __name__ == "__main__":
    main()
