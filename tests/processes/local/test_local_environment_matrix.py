"""The environment contract on real processes: every launcher forms the right process group from it."""

from pathlib import Path

import pytest

from support.local_command import run_job
from support.programs import PROGRAMS

COMMANDS = {
    "python": ["python", str(PROGRAMS / "allreduce.py")],
    "torchrun": ["torchrun", str(PROGRAMS / "allreduce.py")],
    "built-in launcher": [str(PROGRAMS / "launch_allreduce.py")],
}
CELLS = [
    (launcher, nodes, processes)
    for launcher in COMMANDS
    for nodes in (1, 2, 4)
    for processes in (1, 2)
    if (launcher, processes) != ("python", 2)
]
#: One of each launcher, with as many nodes and processes as it takes to tell them apart; `make nightly` tests the rest.
CHECKED_ON_EACH_CHANGE = {("python", 2, 1), ("torchrun", 2, 2), ("built-in launcher", 2, 2)}


@pytest.mark.parametrize(
    ("launcher", "nodes", "processes"),
    [pytest.param(*cell, marks=() if cell in CHECKED_ON_EACH_CHANGE else pytest.mark.nightly) for cell in CELLS],
)
def test_all_ranks_sum_up(tmp_path: Path, launcher: str, nodes: int, processes: int) -> None:
    spec = {"nodes": nodes, "processesPerNode": processes, "command": COMMANDS[launcher], "restart": {"maxRestarts": 0}}
    outcome = run_job(tmp_path, spec)
    world_size = nodes * processes
    expected = {f"rank {rank} of {world_size}: sum {world_size * (world_size + 1) // 2}" for rank in range(world_size)}
    title = "rank" if processes == 1 else "node"
    for node in range(nodes):
        its_ranks = range(node * processes, (node + 1) * processes)
        printed = {line for line in outcome.lines_of(node, title) if line.startswith("rank")}
        assert printed == {line for line in expected if int(line.split()[1]) in its_ranks}
    assert outcome.exit_code == 0
