"""What a pod's main container runs, said in this machine's terms. Pure."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from ddpjob_operator.core.model import Body
from ddpjob_operator.local.volumes import TMP_DIR, Mount, localized

#: Variables of the user's shell that a pod would not see and that would mislead a program about its process group.
_FOREIGN = re.compile(r"(SLURM|PET|TORCHELASTIC|DDPJOB|OMPI|PMI|PMIX)_.*|GROUP_(RANK|WORLD_SIZE)|ROLE_.*")
#: A variable in a command, an argument or a later variable, as in a pod; `$$(NAME)` stands for itself.
_REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine gives to one run."""

    python: Path
    """Interpreter for `python`; the folder it lies in comes first on the PATH."""
    environ: Mapping[str, str]
    """Environment that the run was started in."""
    num_cpus: int
    master_port: int
    """Port of 127.0.0.1 on which rank 0 may listen."""
    gpus: tuple[str, ...]
    """GPUs for the job, as CUDA_VISIBLE_DEVICES names them; those of node rank 0 first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process to start."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    folder: Path
    """Working directory."""


def program_of(pod: Body, mounts: Iterable[Mount], machine: Machine, termination_log: Path, folder: Path) -> Program:
    """The pod's main container as a process.

    The process starts in the container's `workingDir` if that is below a mount, else in `folder`.
    """
    mounts = tuple(mounts)
    main = pod["spec"]["containers"][0]
    asked_for: dict[str, str] = {}
    for variable in main.get("env") or ():
        if "valueFrom" not in variable:
            asked_for[variable["name"]] = localized(expanded(variable.get("value", ""), asked_for), mounts)
    arguments = [*main["command"], *(main.get("args") or ())]
    # A pod's /tmp is empty at first, so a command that names something in it means this machine's, where scripts may lie.
    meant = tuple(mount for mount in mounts if mount.path != TMP_DIR)
    working_dir = main.get("workingDir", "")
    local_dir = localized(working_dir, mounts)
    command = [localized(expanded(argument, asked_for), meant) for argument in arguments]
    if command[0] in ("python", "python3"):
        command[0] = str(machine.python)
    return Program(
        command=tuple(command),
        environ={
            **_inherited(machine),
            **_threads(machine, asked_for),
            **asked_for,
            **_rendezvous(machine.master_port),
            **_gpus(pod, machine),
            contract.DDPJOB_TERMINATION_LOG: str(termination_log),
        },
        folder=folder if local_dir == working_dir else Path(local_dir),
    )


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`text` with each `$(NAME)` replaced by its value, as a kubelet does; unknown names stay."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else variables.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def _inherited(machine: Machine) -> dict[str, str]:
    """The environment of the user's shell, less what a launcher around it may have left there."""
    own = {
        name: value
        for name, value in machine.environ.items()
        if name not in names.RESERVED_VARIABLES and not _FOREIGN.fullmatch(name)
    }
    path = os.pathsep.join([str(machine.python.parent), machine.environ.get("PATH", os.defpath)])
    return {**own, "PATH": path}


def _threads(machine: Machine, asked_for: Mapping[str, str]) -> dict[str, str]:
    """All ranks share this machine's cores: threads beyond them only get in each other's way."""
    world_size = int(asked_for[contract.WORLD_SIZE])
    return {"OMP_NUM_THREADS": str(max(1, machine.num_cpus // world_size))}


def _rendezvous(port: int) -> dict[str, str]:
    """All ranks meet on the loopback interface, which needs neither a name service nor an open firewall."""
    return {
        contract.MASTER_ADDR: "127.0.0.1",
        contract.PET_MASTER_ADDR: "127.0.0.1",
        contract.MASTER_PORT: str(port),
        contract.PET_MASTER_PORT: str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def _gpus(pod: Body, machine: Machine) -> dict[str, str]:
    """The pod's share of the GPUs; a pod that asks for none sees none, as in a cluster."""
    per_pod = len(machine.gpus) // int(_value(pod, contract.NNODES))
    first = int(pod["metadata"]["labels"][names.LABEL_RANK]) * per_pod
    return {"CUDA_VISIBLE_DEVICES": ",".join(machine.gpus[first : first + per_pod])}


def _value(pod: Body, name: str) -> str:
    env: list[Any] = pod["spec"]["containers"][0]["env"]
    return str(next(variable["value"] for variable in env if variable["name"] == name))
