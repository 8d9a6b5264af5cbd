"""Which rank this process is, whatever started it.

One function reads the variables of every launcher: the operator, torchrun, `srun python`, or none. It starts nothing: `launcher` starts processes and `distributed` joins them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError

#: Below the kernel's usual range for outgoing connections, from 32768.
SLURM_PORTS = range(20_000, 30_000)
#: Only srun sets it; a batch script has most of Slurm's other variables too.
SLURM_STEP = "SLURM_STEP_ID"
#: Set by torchrun for its workers.
TORCHRUN = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One rank of the job. Raises ConfigError where its numbers contradict each other."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int

    def __post_init__(self) -> None:
        if self.rank >= self.world_size:
            raise ConfigError(
                f"environment: rank is {self.rank} but the world size is {self.world_size}; ranks count from 0"
            )
        if self.local_rank >= self.local_world_size:
            raise ConfigError(
                f"environment: local rank is {self.local_rank} but the local world size is {self.local_world_size};"
                " local ranks count from 0"
            )

    @property
    def node_rank(self) -> int:
        """The number of its node."""
        return self.rank // self.local_world_size

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
    """A process that has to start the ranks of its node."""

    workers: tuple[Worker, ...]


def resolve(environ: Mapping[str, str]) -> Worker | Node:
    """What the environment says this process is.

    LOCAL_RANK (torchrun, the operator's single process, our launcher) comes before Slurm, since torchrun may run under
    srun. Without it NPROC_PER_NODE above 1 makes a node of this process, where srun has started no others.

    Raises:
        ConfigError: a variable is missing, is no integer, or contradicts another.
    """
    attempt(environ)  # checked here, not when the first file is named after it
    if contract.LOCAL_RANK in environ:
        return _worker_of_variables(environ)
    if (count := num_processes(environ)) > 1:
        _check_starts_processes(environ, count)
        return Node(workers=tuple(_local_worker(environ, index, count) for index in range(count)))
    if SLURM_STEP in environ:
        return _slurm_worker(environ)
    if contract.WORLD_SIZE in environ or contract.RANK in environ:
        return _worker_of_variables(environ)
    _check_one_process_is_intended(environ)
    return _local_worker({}, 0, 1)


def node(environ: Mapping[str, str]) -> Node:
    """The ranks that this process starts, as the environment describes them. Raises ConfigError as `resolve` does."""
    place = resolve(environ)
    return place if isinstance(place, Node) else Node(workers=(place,))


def num_processes(environ: Mapping[str, str]) -> int:
    """How many ranks run on this node, unless it is a Slurm task.

    Raises:
        ConfigError: the variable that holds it is not an integer.
    """
    return _integer(environ, contract.NPROC_PER_NODE, default=1)


def attempt(environ: Mapping[str, str]) -> int:
    """Which attempt at the job this process belongs to, from 1: the operator's number, or the starts of a Slurm job.

    Raises:
        ConfigError: the variable that holds it is not an integer.
    """
    starts = 1 + _integer(environ, "SLURM_RESTART_COUNT", default=0)
    return _integer(environ, contract.DDPJOB_ATTEMPT, default=starts)


def in_place_restarts(environ: Mapping[str, str]) -> int:
    """How often the launcher may start all ranks again in place. Never under torchrun, whose agents start and stop the ranks.

    Raises:
        ConfigError: the variable that holds it is not an integer.
    """
    if TORCHRUN in environ:
        return 0
    return _integer(environ, contract.DDPJOB_IN_PLACE_RESTARTS, default=0)


def _worker_of_variables(environ: Mapping[str, str]) -> Worker:
    """A process whose RANK and WORLD_SIZE were set for it."""
    launcher = "torchrun" if TORCHRUN in environ else "environment"
    _check_restarts_of_torchrun(environ)
    if TORCHRUN in environ and SLURM_STEP in environ:
        launcher = "srun torchrun"
        if (num_tasks := _slurm_tasks_on_this_node(environ)) > 1:
            raise ConfigError(
                f"Slurm: srun starts {num_tasks} torchrun processes on this node, but one starts all processes of a node; use"
                f" srun --ntasks-per-node=1 torchrun --nproc-per-node={num_tasks} ..."
            )
    return Worker(
        launcher=launcher,
        rank=_integer(environ, contract.RANK),
        world_size=_integer(environ, contract.WORLD_SIZE),
        local_rank=_integer(environ, contract.LOCAL_RANK, default=0),
        local_world_size=_integer(environ, contract.LOCAL_WORLD_SIZE, default=1),
        master_addr=_master_addr(environ),
        master_port=_master_port(environ),
    )


def _local_worker(environ: Mapping[str, str], local_rank: int, num_processes: int) -> Worker:
    """One of the ranks that this process starts, or itself if it is alone. The pod's RANK is that of its first process."""
    world_size = _integer(environ, contract.WORLD_SIZE, default=num_processes)
    here = {contract.MASTER_ADDR: "127.0.0.1"} if world_size == num_processes else {}
    return Worker(
        launcher="ddpjob launcher" if num_processes > 1 else "alone",
        rank=_integer(environ, contract.RANK, default=0) + local_rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=num_processes,
        master_addr=_master_addr({**here, **environ}),
        master_port=_master_port(environ),
    )


def _check_restarts_of_torchrun(environ: Mapping[str, str]) -> None:
    """Refuse restarts whose ranks would not find each other: each node's agent counts its own."""
    restarts = _integer(environ, "TORCHELASTIC_MAX_RESTARTS", default=0)
    num_nodes = _integer(environ, "GROUP_WORLD_SIZE", default=1)
    if restarts and num_nodes > 1 and environ.get(contract.TORCHELASTIC_USE_AGENT_STORE) != "False":
        raise ConfigError(
            f"torchrun: --max-restarts is {restarts} on {num_nodes} nodes, but each node's agent counts its own restarts;"
            " set restart.inPlace of the DDPJob, or remove --max-restarts and restart the whole job instead (a DDPJob does so itself, Slurm with --requeue)"
        )


def _check_starts_processes(environ: Mapping[str, str], num_processes: int) -> None:
    """Refuse to make a node of each of srun's tasks, which are processes of one job already."""
    num_tasks = _integer(environ, "SLURM_NTASKS", default=1)
    if SLURM_STEP in environ and num_tasks > 1:
        raise ConfigError(
            f"Slurm: {contract.NPROC_PER_NODE} is {num_processes}, but srun starts {num_tasks} tasks, each of which is one"
            f" process; unset {contract.NPROC_PER_NODE}, or start one task that starts {num_processes} processes: srun --ntasks=1"
        )


def _check_one_process_is_intended(environ: Mapping[str, str]) -> None:
    """Refuse to train with one process where the environment says that several were intended."""
    num_tasks = _integer(environ, "SLURM_NTASKS", default=1)
    if "SLURM_JOB_ID" in environ and num_tasks > 1:
        raise ConfigError(
            f"Slurm: the job has {num_tasks} tasks, but srun did not start this process; start it with"
            " `srun --kill-on-bad-exit=1 python -m ddpjob_trainer ...`, or request --ntasks=1 to train with one process"
        )
    if address := environ.get(contract.MASTER_ADDR):
        raise ConfigError(
            f"environment: {contract.MASTER_ADDR} is {address}, but neither {contract.RANK} nor {contract.WORLD_SIZE} is"
            f" set; set both (or --rank and --world-size), or unset {contract.MASTER_ADDR} to train with one process"
        )


def _slurm_worker(environ: Mapping[str, str]) -> Worker:
    """One task of `srun`.

    The master is the step's first node, where task 0 runs. Only without a list it is the address that srun was called
    at, which is a login node's under salloc. The port follows from job and step, so that they share nodes.
    """
    nodelist = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    caller = environ.get("SLURM_LAUNCH_NODE_IPADDR") or environ.get("SLURM_SRUN_COMM_HOST", "")
    step = _integer(environ, "SLURM_JOB_ID", default=0) + 101 * _integer(environ, SLURM_STEP, default=0)
    return Worker(
        launcher="srun",
        rank=_integer(environ, "SLURM_PROCID"),
        world_size=_integer(environ, "SLURM_NTASKS"),
        local_rank=_integer(environ, "SLURM_LOCALID"),
        local_world_size=_slurm_tasks_on_this_node(environ),
        master_addr=_master_addr({contract.MASTER_ADDR: first_slurm_host(nodelist) or caller, **environ}),
        master_port=_master_port(environ, default=SLURM_PORTS[step % len(SLURM_PORTS)]),
    )


def first_slurm_host(nodelist: str) -> str:
    """The first host of a Slurm node list: `gpu[07-09,12],login` gives `gpu07`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([^\],\-]+)[^\]]*\]", r"\1", first[0]) if first else ""


def _slurm_tasks_on_this_node(environ: Mapping[str, str]) -> int:
    """SLURM_STEP_TASKS_PER_NODE is a run-length list: `4(x2),3` means 4, 4, 3."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "1")
    counts: list[int] = []
    for count, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(repeat or 1)
    node, num_tasks = _integer(environ, "SLURM_NODEID", default=0), _integer(environ, "SLURM_NTASKS")
    if node >= len(counts):
        raise ConfigError(f"Slurm: SLURM_NODEID is {node}, but SLURM_TASKS_PER_NODE ({text!r}) has no such node")
    if sum(counts) != num_tasks:
        raise ConfigError(
            f"Slurm: SLURM_NTASKS is {num_tasks}, but the nodes have {text} tasks, {sum(counts)} in total; call srun"
            " with --nodes and --ntasks-per-node whose product is --ntasks, or without --ntasks"
        )
    num_gpus = _integer(environ, "SLURM_GPUS_ON_NODE", default=counts[node])
    if counts[node] > num_gpus and environ.get("CUDA_VISIBLE_DEVICES") != "":
        raise ConfigError(
            f"Slurm: this node runs {counts[node]} tasks on {num_gpus} GPUs; each process needs one GPU: set"
            f" --ntasks-per-node={num_gpus} or --gres=gpu:{counts[node]}"
        )
    return counts[node]


def _master_addr(environ: Mapping[str, str]) -> str:
    if address := environ.get(contract.MASTER_ADDR):
        return address
    raise ConfigError(
        f"environment: {contract.MASTER_ADDR} is not set; set it to the host name or address of global rank 0,"
        " or give --init-method tcp://HOST:PORT"
    )


def _master_port(environ: Mapping[str, str], default: int = contract.DEFAULT_MASTER_PORT) -> int:
    if (port := _integer(environ, contract.MASTER_PORT, default=default)) in range(1, 2**16):
        return port
    raise ConfigError(f"environment: {contract.MASTER_PORT} is {port}; expected a TCP port from 1 to 65535")


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
