"""Before training: are all ranks the same program on the same data, each on a device of its own?

Ranks compare what they know over the store, before any process group exists, so that a mistake ends in one sentence and
not in a collective that never returns. Rank 0 prints remarks about what is only unwise; they stop no rank.
"""

import importlib.metadata
import json
import os
import platform
import shutil
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
from torch._C._distributed_c10d import Store

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError, PeersMissingError, ShortageError
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.launch.rendezvous import rendezvous_timeout, wait_until

#: What computes or decodes, besides torch.
LIBRARIES: Final = ("torchvision", "numpy", "pillow")
#: What to do where ranks disagree, by the name of the fact they disagree on, or by its part up to a dot. Any other name is a
#: key of the configuration.
ADVICE: Final[Mapping[str, str]] = {
    "job": "these ranks belong to different jobs or attempts that use the same address; give each job its own MASTER_PORT",
    "world size": "start every rank with the same WORLD_SIZE",
    **dict.fromkeys(("code", "recipe's code"), "run the same image or checkout everywhere"),
    **dict.fromkeys(("Python", "torch", *LIBRARIES, "CUDA and NCCL"), "run the same image or environment everywhere"),
    "checkpoint folder": f"set {contract.DDPJOB_CHECKPOINT_DIR}, or {contract.DDPJOB_CHECKPOINT_URI}, on every rank, or on none",
    "settings.": "the recipe gives it another value in each process, such as a random number or a time; set it in trainer.settings",
    **dict.fromkeys(("data", "held-out data"), "give every rank the same files (DDPJOB_DATA_DIR)"),
}
MAX_LINES: Final = 5
MAX_RANKS: Final = 4

SHM: Final = "/dev/shm"  # noqa: S108 - read only for its size
#: Docker's default is 64 MiB, which NCCL's buffers between the processes of a node can exhaust.
SMALL_SHM_BYTES: Final = 128 * 2**20
#: Below this no checkpoint of the smallest recipes fits next to the previous one.
NO_SPACE_BYTES: Final = 16 * 2**20
LITTLE_SPACE_BYTES: Final = 2**30

#: Rank 0, which serves the store, waits this long for the other ranks to read why they must exit.
READ_TIMEOUT = timedelta(seconds=10)
DECISION: Final = "ddpjob/preflight/decision"
READ: Final = "ddpjob/preflight/read"


class RefusedError(ConfigError):
    """The ranks cannot train together. Each rank raises this error with the same text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one rank knows about itself.

    Attributes:
        location: Pod, node or host, as messages name it.
        gpu: Unique id of its GPU, empty on a CPU.
        same: What must be the same on all ranks, by name.
        shortages: Problems that an administrator must fix before this rank can train.
        remarks: Problems that do not keep this rank from training.
    """

    rank: int
    location: str
    same: Mapping[str, str]
    gpu: str = ""
    shortages: Sequence[str] = ()
    remarks: Sequence[str] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.location})"


def check(store: Store, worker: Worker, same: Mapping[str, str], device: torch.device, process: str) -> None:
    """Wait until all ranks are here and are fit to train together. `same` is what the program adds to Facts.same.

    `process` tells this process from another one that says that it has the same rank. After a lost connection it may ask again.

    Raises:
        RefusedError: they are not; the text says which ranks differ in what, and what to do.
        ShortageError: they will be once somebody has done what the text says.
        PeersMissingError: some ranks did not start in time.
    """
    facts = facts_of(worker, same, device)
    if store.compare_set(f"{key_of(worker.rank)}/process", "", process).decode() != process:
        twice = f"preflight: two processes have rank {worker.rank}, one of them on {facts.location}; give each process its own RANK"
        store.set(DECISION, json.dumps([twice, ""]))
    store.set(key_of(worker.rank), json.dumps(asdict(facts)))
    if worker.rank == 0:
        _await_ranks(store, worker)
        if not store.check([DECISION]):
            everyone = [Facts(**json.loads(store.get(key_of(rank)))) for rank in range(worker.world_size)]
            for one in everyone:
                for remark in one.remarks:
                    print(f"preflight: {one}: {remark}", flush=True)
            store.set(DECISION, json.dumps([disagreements_of(everyone), shortages_of(everyone)]))
    else:
        wait_until(
            lambda: None if store.check([DECISION]) else "rank 0 is waiting for other ranks",
            rank=worker.rank,
            limit=rendezvous_timeout(),
        )
    refused, short = json.loads(store.get(DECISION))
    if refused or short:
        store.add(READ, 1)
        if worker.rank == 0:
            with suppress(PeersMissingError):  # a rank that has ended meanwhile is not the cause
                unread = "other ranks have not read why they must exit"
                wait_until(
                    lambda: None if store.add(READ, 0) >= worker.world_size else unread, rank=0, limit=READ_TIMEOUT
                )
        raise RefusedError(refused) if refused else ShortageError(short)


def shortages_of(everyone: Sequence[Facts]) -> str:
    """What keeps these ranks from training until somebody has fixed it, a line each; empty where nothing does."""
    lines = [f"{facts}: {shortage}" for facts in everyone for shortage in facts.shortages]
    return "\n".join(f"preflight: {line}" for line in lines[:MAX_LINES])


def disagreements_of(everyone: Sequence[Facts]) -> str:
    """What keeps these ranks from training together, at most a few lines; empty where nothing does."""
    lines = [line for name in everyone[0].same if (line := _disagreement(name, everyone))]
    shared = Counter(facts.gpu for facts in everyone if facts.gpu)
    lines += [
        f"{_ranks([facts for facts in everyone if facts.gpu == gpu])} share the GPU {gpu}; start one process per GPU"
        for gpu, count in shared.items()
        if count > 1
    ]
    return "\n".join(f"preflight: {line}" for line in lines[:MAX_LINES])


def facts_of(worker: Worker, same: Mapping[str, str], device: torch.device) -> Facts:
    """The facts of this rank."""
    gpu, nccl = "", "none"
    shortages: list[str] = []
    remarks: list[str] = []
    if device.type == "cuda":
        gpu = str(torch.cuda.get_device_properties(device).uuid)
        nccl = f"{torch.version.cuda} and {'.'.join(map(str, torch.cuda.nccl.version()))}"  # type: ignore[no-untyped-call]
        if worker.local_rank == 0 and (idle := torch.cuda.device_count() - worker.local_world_size) > 0:
            remarks.append(f"{idle} of {torch.cuda.device_count()} GPUs are not used; start one process per GPU")
    if worker.local_rank == 0 and worker.local_world_size > 1 and (shm := free_bytes(SHM)) < SMALL_SHM_BYTES:
        remarks.append(f"{SHM} has {_mib(shm)} free; NCCL and data loaders may need more (see docker run --shm-size)")
    folder = os.environ.get(contract.DDPJOB_CHECKPOINT_DIR, "")
    if worker.rank == 0 and folder and (space := free_bytes(folder)) < LITTLE_SPACE_BYTES:
        found = f"{folder} has {_mib(space)} free for checkpoints; delete files there or use a larger volume"
        (shortages if space < NO_SPACE_BYTES else remarks).append(found)
    job = [os.environ.get(name, "") for name in (contract.DDPJOB_UID, contract.DDPJOB_ATTEMPT, "SLURM_JOB_ID")]
    return Facts(
        rank=worker.rank,
        location=location(os.environ),
        gpu=gpu,
        same={
            "job": " ".join(filter(None, job)) or "none",
            "world size": str(worker.world_size),
            "checkpoint folder": "one" if folder else os.environ.get(contract.DDPJOB_CHECKPOINT_URI) or "none",
            **same,
            "Python": platform.python_version(),
            "torch": str(torch.__version__),
            **{library: _version(library) for library in LIBRARIES},
            "CUDA and NCCL": nccl,
        },
        shortages=shortages,
        remarks=remarks,
    )


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def location(environ: Mapping[str, str]) -> str:
    """Where this process runs, as messages name it: its pod and node, Slurm's node, or the host."""
    host = socket.gethostname()
    if contract.DDPJOB_NAME in environ:
        return f"pod {host}" + (f" on node {node}" if (node := environ.get(contract.NODE_NAME)) else "")
    return f"node {environ['SLURMD_NODENAME']}" if "SLURMD_NODENAME" in environ else f"host {host}"


def _await_ranks(store: Store, worker: Worker) -> None:
    keys = {rank: key_of(rank) for rank in range(worker.world_size)}

    def probe() -> str | None:
        if store.check(list(keys.values())) or store.check([DECISION]):
            return None
        missing = [str(rank) for rank, key in keys.items() if not store.check([key])]
        return f"{len(missing)} of {worker.world_size} ranks have not started: {', '.join(missing[:16])}"

    wait_until(probe, rank=0, limit=rendezvous_timeout())


def _disagreement(name: str, everyone: Sequence[Facts]) -> str | None:
    """Which ranks differ in one fact from most ranks, or from rank 0 where each value occurs once."""
    values = [facts.same.get(name, "none") for facts in everyone]
    usual, count = Counter(values).most_common(1)[0]
    odd = [facts for facts, value in zip(everyone, values, strict=True) if value != usual]
    if not odd:
        return None
    others = f"rank {values.index(usual)} has" if count == 1 else f"{count} ranks have"
    group, dot, _ = name.partition(".")
    advice = ADVICE.get(group + dot, "start every rank with the same configuration")
    return f"{name} differs: {_ranks(odd)} has {odd[0].same.get(name, 'none')}, {others} {usual}; {advice}"


def _ranks(some: Sequence[Facts]) -> str:
    return ", ".join(map(str, some[:MAX_RANKS])) + (
        f" and {len(some) - MAX_RANKS} more" if len(some) > MAX_RANKS else ""
    )


def free_bytes(folder: str) -> int:
    """Free bytes of the file system that the folder is on, or will be."""
    path = Path(folder).absolute()
    for parent in (path, *path.parents):
        # What this user may not look at is reported by what opens the folder.
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            return shutil.disk_usage(parent).free
    raise FileNotFoundError(folder)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes // 2**20} MiB"


def key_of(rank: int) -> str:
    """Where the facts of a rank are in the store."""
    return f"ddpjob/preflight/{rank}"
