"""Translates the command and the environment of a pod's main container for this machine. Pure."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpjob_cli.local.volumes import TMP_DIR, Mount, localized
from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from ddpjob_operator.core.model import Body

#: Variables of the user's shell that would give a program a wrong process group. A pod does not have them.
_FOREIGN = re.compile(r"(SLURM|PET|TORCHELASTIC|DDPJOB|OMPI|PMI|PMIX)_.*|GROUP_(RANK|WORLD_SIZE)|ROLE_.*")
#: A reference to a variable in a command, an argument or a later variable, as in a pod. `$$(NAME)` is not expanded.
_REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The resources of this machine for one run."""

    python: Path
    """Interpreter for `python`. Its directory is the first one of PATH."""
    environ: Mapping[str, str]
    """Environment of the command that started the run."""
    num_cpus: int
    master_port: int
    """Port of 127.0.0.1 on which rank 0 listens."""
    gpus: tuple[str, ...]
    """GPUs of the job, as in CUDA_VISIBLE_DEVICES, those of node rank 0 first."""


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
    # A pod's /tmp is empty at first and goes with the run, so that a path below /tmp means one of this machine, for example a script,
    # or a directory to keep. A variable that is /tmp itself asks for the pod's own, as the operator does for the cache of compiled code.
    kept_mounts = tuple(mount for mount in mounts if mount.path != TMP_DIR)
    own: dict[str, str] = {}
    for variable in main.get("env") or ():
        if "valueFrom" not in variable:
            name, value = variable["name"], expanded(variable.get("value", ""), own)
            is_temporary = value == TMP_DIR or name == contract.TORCHINDUCTOR_CACHE_DIR
            own[name] = localized(value, mounts if is_temporary else kept_mounts)
    arguments = [*main["command"], *(main.get("args") or ())]
    working_dir = main.get("workingDir", "")
    local_dir = localized(working_dir, mounts)
    command = [localized(expanded(argument, own), kept_mounts) for argument in arguments]
    if command[0] in ("python", "python3"):
        command[0] = str(machine.python)
    return Program(
        command=tuple(command),
        environ={
            **_inherited(machine),
            **_threads(machine, own),
            **own,
            **_rendezvous(machine.master_port, own),
            **_gpus(pod, machine),
            contract.DDPJOB_TERMINATION_LOG: str(termination_log),
        },
        folder=folder if local_dir == working_dir else Path(local_dir),
    )


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`text` with each `$(NAME)` replaced by its value, as a kubelet does. Unknown names are not replaced."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else variables.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def _inherited(machine: Machine) -> dict[str, str]:
    """The environment of the user's shell without variables of a launcher that may have started the shell."""
    own = {
        name: value
        for name, value in machine.environ.items()
        if name not in names.RESERVED_VARIABLES and not _FOREIGN.fullmatch(name)
    }
    path = os.pathsep.join([str(machine.python.parent), machine.environ.get("PATH", os.defpath)])
    return {**own, "PATH": path}


def _threads(machine: Machine, own: Mapping[str, str]) -> dict[str, str]:
    """All ranks share the cores of this machine, and more threads than cores would be slower."""
    world_size = int(own[contract.WORLD_SIZE])
    return {"OMP_NUM_THREADS": str(max(1, machine.num_cpus // world_size))}


def _rendezvous(port: int, own: Mapping[str, str]) -> dict[str, str]:
    """All ranks use the loopback interface, which needs neither DNS nor an open firewall."""
    endpoint = {contract.PET_RDZV_ENDPOINT: f"127.0.0.1:{port}"} if contract.PET_RDZV_ENDPOINT in own else {}
    is_first = own.get(contract.PET_LOCAL_ADDR) == own[contract.MASTER_ADDR]
    return {
        **endpoint,
        **({contract.PET_LOCAL_ADDR: "127.0.0.1"} if is_first else {}),
        contract.MASTER_ADDR: "127.0.0.1",
        contract.PET_MASTER_ADDR: "127.0.0.1",
        contract.MASTER_PORT: str(port),
        contract.PET_MASTER_PORT: str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def _gpus(pod: Body, machine: Machine) -> dict[str, str]:
    """The GPUs of the pod. A pod that requests no GPUs sees none, as on a cluster."""
    per_pod = len(machine.gpus) // int(_value(pod, contract.NNODES))
    first = int(pod["metadata"]["labels"][names.LABEL_RANK]) * per_pod
    return {"CUDA_VISIBLE_DEVICES": ",".join(machine.gpus[first : first + per_pod])}


def _value(pod: Body, name: str) -> str:
    env: list[Any] = pod["spec"]["containers"][0]["env"]
    return str(next(variable["value"] for variable in env if variable["name"] == name))
