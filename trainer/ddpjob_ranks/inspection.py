"""Lets people look into running ranks: `python -m ddpjob_ranks.inspection stacks` in a pod asks all ranks of the pod.

Each rank answers on a Unix socket in the abstract namespace of the pod, so there is no port and no file, and no signal that
would end a program that does not expect it. A thread of its own answers, also while the main thread waits in a collective,
which releases the interpreter's lock. While other code holds that lock, nothing is answered.

Standard library only: the command starts in the time of an interpreter.
"""

import json
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddpjob_ranks import contract, stacks

if TYPE_CHECKING:
    from ddpjob_ranks.watch.timeline import Timeline

#: Name of the thread that answers, which does not appear among the stacks.
THREAD_NAME: Final = "inspection"
#: A rank that does not answer in this time is reported as such.
ANSWER_SECONDS: Final = 5.0
STACKS: Final = "stacks"
STATE: Final = "state"


def serve(rank: int, timeline: "Timeline", environ: Mapping[str, str]) -> None:
    """Answer inspections of this rank in a thread until the process ends; without a socket, nothing is answered."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(f"\0{_prefix(environ) or f'ddpjob/{os.getpid()}/'}{rank}")
        server.listen()
    except OSError:  # another process of this rank has not ended yet, or there are no Unix sockets
        server.close()
        return
    os.register_at_fork(after_in_child=server.close)
    answers = {
        STACKS: lambda: stacks.of_all_threads(without=[THREAD_NAME]),
        STATE: lambda: json.dumps(asdict(state(rank, timeline))),
    }
    threading.Thread(target=_answer_all, args=(server, answers), name=THREAD_NAME, daemon=True).start()


def state(rank: int, timeline: "Timeline") -> contract.RankState:
    """Where this rank is, and where its time went since its first step."""
    mark = timeline.mark
    found = contract.RankState(
        rank=rank,
        step=mark.step,
        phase=mark.phase.value,
        seconds_in_phase=round(time.monotonic() - mark.since, 3),
        num_samples=timeline.num_samples,
        memory_bytes=_resident_bytes(),
    )
    torch = sys.modules.get("torch")
    if torch is None:
        return found
    uses_gpu = torch.cuda.is_initialized()
    if timeline.num_steps:
        from ddpjob_ranks.watch import limiter

        seconds = limiter.spent(timeline, torch.device("cuda" if uses_gpu else "cpu"))
        found = replace(found, seconds=seconds, has_communication=timeline.num_sampled > 0)
    # What torch's allocator counts itself: a request to the driver from this thread could hang, or use another GPU.
    for gpu in range(torch.cuda.device_count() if uses_gpu else 0):
        if reserved := torch.cuda.memory_reserved(gpu):
            total = torch.cuda.get_device_properties(gpu).total_memory
            found = replace(found, gpu_memory_bytes=reserved, gpu_memory_total_bytes=total)
    return found


def ask(request: str, environ: Mapping[str, str]) -> Iterator[contract.RankAnswer]:
    """The answer of each rank of this job that runs in this pod, in the order of ranks."""
    for rank, name in sorted(_listening(environ)):
        try:
            yield contract.RankAnswer(rank=rank, answer=_ask(name, request))
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else str(error.strerror or error)
            yield contract.RankAnswer(rank=rank, error=why)


def _prefix(environ: Mapping[str, str]) -> str:
    """What the names of the sockets of a job's attempt begin with; empty outside of jobs of the operator."""
    uid = environ.get(contract.DDPJOB_UID)
    return f"ddpjob/{uid}/{environ.get(contract.DDPJOB_ATTEMPT, '1')}/" if uid else ""


def _listening(environ: Mapping[str, str]) -> set[tuple[int, str]]:
    """Rank and name of each socket. A pod on the network of its host sees those of other jobs, too."""
    prefix = re.escape(_prefix(environ)) or r"ddpjob/\d+/"
    text = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
    return {(int(rank), name) for name, rank in re.findall(rf" @({prefix}(\d+))$", text, re.MULTILINE)}


def _ask(name: str, request: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(f"\0{name}")
        connection.sendall(f"{request}\n".encode())
        with connection.makefile("r", encoding="utf-8") as answer:
            return answer.read()


def _answer_all(server: socket.socket, answers: Mapping[str, Callable[[], str]]) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(ANSWER_SECONDS)
            try:
                if _is_allowed(connection):
                    request = connection.recv(64).decode(errors="replace").strip()
                    connection.sendall(answers[request]().encode() if request in answers else b"")
            except OSError:  # the other side has gone
                continue


def _is_allowed(connection: socket.socket) -> bool:
    """Whether the other process belongs to the same user, or to root."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return uid in (0, os.getuid())


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str]) -> None:
    """Print each rank's answer as a JSON object in a line."""
    for answer in ask(arguments[0] if arguments else STACKS, os.environ):
        print(json.dumps(asdict(answer)))


if __name__ == "__main__":
    main(sys.argv[1:])
