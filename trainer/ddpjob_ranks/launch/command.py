"""`python -m ddpjob.launch`: which ranks to start for a script, and starting them."""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpjob_ranks import contract, termination
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.launch import identity, launcher, supervisor

#: Set for all ranks unless the environment has another value. Idle threads sleep: by default they spin, which on cores
#: shared with other pods starves the thread they wait for (digits with 2 threads on 2 busy cores: 31.7 s against 7.3 s).
#: Read when torch loads its OpenMP runtime.
RANK_DEFAULTS = {"OMP_WAIT_POLICY": "passive"}


def main(arguments: Sequence[str]) -> int:
    """Start the script once for each rank of this node, to the end of all of them; returns the exit code."""
    given = command_line().parse_args(arguments)
    program = ["-m", given.script] if given.module else [given.script]
    try:
        environ = environment(given, os.environ)
        return start([*program, *given.arguments], environ)
    except ConfigError as error:
        return termination.refuse(error)


def start(program: Sequence[str], environ: Mapping[str, str], modules: Sequence[str] = ()) -> int:
    """Start Python with these arguments for each rank of the node that the environment describes; returns the exit code.

    `modules` are what the program imports, to be imported once for all ranks where these are forked.
    """
    environ = {**RANK_DEFAULTS, **environ}
    with launcher.with_free_port(environ) as variables:
        if identity.in_place_restarts(variables):
            return supervisor.run(program, variables, modules)
        node, given = identity.node(variables), {**variables, **termination.variables(variables)}
        return launcher.run(node, [sys.executable, *program], given)


def environment(given: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the launcher with its options, which win over those that the operator sets.

    Raises:
        ConfigError: the options contradict each other or the environment.
    """
    variables = dict(environ)
    if given.nproc_per_node is not None or not {contract.NPROC_PER_NODE, contract.LOCAL_RANK} & environ.keys():
        if identity.SLURM_STEP in environ and given.nproc_per_node is None and given.nnodes is None:
            return variables  # each task of srun is one rank
        variables[contract.NPROC_PER_NODE] = str(_num_processes(given.nproc_per_node or "auto", environ))
        variables.pop(contract.LOCAL_RANK, None)
    if given.nnodes is not None:
        variables |= _place(given.nnodes, given.node_rank, variables)
    for name, value in ((contract.MASTER_ADDR, given.master_addr), (contract.MASTER_PORT, given.master_port)):
        if value is not None:
            variables[name] = str(value)
    return variables


def _place(num_nodes: int, node_rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of one of several nodes, each of which starts as many processes as this one."""
    if num_nodes < 1:
        raise ConfigError(f"--nnodes is {num_nodes}; expected a number of 1 or more")
    if not 0 <= node_rank < num_nodes:
        raise ConfigError(f"--node-rank is {node_rank}; expected a number from 0 to {num_nodes - 1} (--nnodes)")
    if contract.NPROC_PER_NODE not in environ:
        raise ConfigError(
            f"--nnodes is {num_nodes}, but {contract.LOCAL_RANK} is {environ[contract.LOCAL_RANK]}, which says that this"
            f" process is a rank that another launcher has started; unset {contract.LOCAL_RANK}, or give --nproc-per-node"
        )
    num_processes = identity.num_processes(environ)
    return {
        contract.WORLD_SIZE: str(num_nodes * num_processes),
        contract.RANK: str(node_rank * num_processes),
    }


def _num_processes(text: str, environ: Mapping[str, str]) -> int:
    """The number of processes that the option asks for; `auto` is one for each GPU, or one."""
    if text == "auto":
        return max(1, num_gpus(environ))
    if not re.fullmatch(r"[1-9]\d*", text):
        raise ConfigError(f"--nproc-per-node is {text!r}; expected auto or a number of 1 or more")
    return int(text)


def num_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """How many GPUs this process can use, without torch: those that CUDA_VISIBLE_DEVICES lists, or all of the node or pod."""
    if "CUDA_VISIBLE_DEVICES" in environ:
        listed = environ["CUDA_VISIBLE_DEVICES"].split(",")
        return len([name for name in listed if name.strip() not in ("", "-1", "NoDevFiles")])
    return sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in devices.glob("nvidia*"))


def command_line() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m ddpjob.launch",
        description="Start a training script once for each rank of this node.",
        epilog="Without options, in a DDPJob, the numbers are those of the job.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--nproc-per-node",
        metavar="N",
        help="processes to start, or auto: one for each GPU, or one (default: NPROC_PER_NODE, or auto)",
    )
    parser.add_argument("--nnodes", type=int, metavar="N", help="number of nodes, each of which runs this command")
    parser.add_argument("--node-rank", type=int, default=0, metavar="N", help="number of this node, from 0")
    parser.add_argument("--master-addr", metavar="HOST", help="host name or address of node 0")
    parser.add_argument(
        "--master-port", type=int, metavar="PORT", help=f"free port on it ({contract.DEFAULT_MASTER_PORT})"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script", help="Python file, or module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser
