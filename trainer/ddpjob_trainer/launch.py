"""Who this process is, whatever started it.

One function reads the variables of every launcher: the operator, torchrun, `srun python`, or none. It decides nothing
but that; `launcher` starts processes and `distributed` joins them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddpjob_trainer import contract
from ddpjob_trainer.config import ConfigError

SLURM_PORTS = range(20_000, 30_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One rank of the job."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int

    def environment(self) -> dict[str, str]:
        """The variables that `env://` and libraries read, for this rank."""
        return {
            contract.RANK: str(self.rank),
            contract.WORLD_SIZE: str(self.world_size),
            contract.LOCAL_RANK: str(self.local_rank),
            contract.LOCAL_WORLD_SIZE: str(self.local_world_size),
            contract.MASTER_ADDR: self.master_addr,
            contract.MASTER_PORT: str(self.master_port),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A pod that has to start its ranks itself."""

    workers: tuple[Worker, ...]


def resolve(environ: Mapping[str, str]) -> Worker | Node:
    """What the environment says this process is.

    LOCAL_RANK (torchrun, the operator's single process, our launcher) comes before SLURM_LOCALID, since torchrun may run
    under srun. Without either, NPROC_PER_NODE above 1 makes a node of it.

    Raises:
        ConfigError: a variable is missing, is no integer, or contradicts another.
    """
    if contract.LOCAL_RANK not in environ and "SLURM_LOCALID" in environ:
        return _checked(_slurm_worker(environ))
    num_processes = _integer(environ, contract.NPROC_PER_NODE, default=1)
    if contract.LOCAL_RANK not in environ and num_processes > 1:
        return Node(workers=tuple(_local_worker(environ, index, num_processes) for index in range(num_processes)))
    if contract.WORLD_SIZE not in environ and contract.RANK not in environ:
        return Worker(
            launcher="alone",
            rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            master_addr="127.0.0.1",
            master_port=contract.DEFAULT_MASTER_PORT,
        )
    return _checked(
        Worker(
            launcher="torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment",
            rank=_integer(environ, contract.RANK),
            world_size=_integer(environ, contract.WORLD_SIZE),
            local_rank=_integer(environ, contract.LOCAL_RANK, default=0),
            local_world_size=_integer(environ, contract.LOCAL_WORLD_SIZE, default=1),
            master_addr=_master_addr(environ),
            master_port=_master_port(environ),
        )
    )


def _local_worker(environ: Mapping[str, str], local_rank: int, num_processes: int) -> Worker:
    """One of the ranks that this pod starts: the pod's RANK is that of its first process."""
    return _checked(
        Worker(
            launcher="ddpjob_trainer",
            rank=_integer(environ, contract.RANK, default=0) + local_rank,
            world_size=_integer(environ, contract.WORLD_SIZE, default=num_processes),
            local_rank=local_rank,
            local_world_size=num_processes,
            master_addr=environ.get(contract.MASTER_ADDR) or "127.0.0.1",
            master_port=_master_port(environ),
        )
    )


def _slurm_worker(environ: Mapping[str, str]) -> Worker:
    """One task of `srun`. The master is the step's first node; the port follows from the job so that jobs share nodes."""
    master = {
        contract.MASTER_ADDR: first_slurm_host(
            environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
        )
    }
    port = SLURM_PORTS[_integer(environ, "SLURM_JOB_ID", default=0) % len(SLURM_PORTS)]
    return Worker(
        launcher="srun",
        rank=_integer(environ, "SLURM_PROCID"),
        world_size=_integer(environ, "SLURM_NTASKS"),
        local_rank=_integer(environ, "SLURM_LOCALID"),
        local_world_size=_slurm_tasks_on_this_node(environ),
        master_addr=_master_addr({**master, **environ}),
        master_port=_integer(environ, contract.MASTER_PORT, default=port),
    )


def first_slurm_host(nodelist: str) -> str:
    """The first host of a Slurm node list: `gpu[07-09,12],login` gives `gpu07`."""
    match = re.match(r"([^,\[]*)(?:\[([^,\-\]]+)[^\]]*\]([^,]*))?", nodelist)
    return "".join(part or "" for part in match.groups()) if match else ""


def _slurm_tasks_on_this_node(environ: Mapping[str, str]) -> int:
    """SLURM_STEP_TASKS_PER_NODE is a run-length list: `4(x2),3` means 4, 4, 3."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "1")
    counts: list[int] = []
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(repeat or 1)
    node = _integer(environ, "SLURM_NODEID", default=0)
    if node >= len(counts):
        raise ConfigError(f"environment: SLURM_NODEID is {node}, but SLURM_TASKS_PER_NODE ({text!r}) has no such node")
    return counts[node]


def _master_addr(environ: Mapping[str, str]) -> str:
    if address := environ.get(contract.MASTER_ADDR):
        return address
    raise ConfigError(
        f"environment: {contract.MASTER_ADDR} is not set; set it to the host name or address of global rank 0"
    )


def _master_port(environ: Mapping[str, str]) -> int:
    return _integer(environ, contract.MASTER_PORT, default=contract.DEFAULT_MASTER_PORT)


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        found = repr(text) if name in environ else "not set"
        raise ConfigError(f"environment: {name} is {found}; expected an integer of 0 or more")
    return value


def _checked(worker: Worker) -> Worker:
    if worker.rank >= worker.world_size:
        raise ConfigError(
            f"environment: rank is {worker.rank} but the world size is {worker.world_size}; ranks count from 0"
        )
    if worker.local_rank >= worker.local_world_size:
        raise ConfigError(
            f"environment: local rank is {worker.local_rank} but the local world size is {worker.local_world_size};"
            " local ranks count from 0"
        )
    return worker
