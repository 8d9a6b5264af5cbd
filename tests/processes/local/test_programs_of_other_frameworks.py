"""Programs in the manner of tutorials, accelerate and Lightning run unchanged in the environment of a pod."""

from pathlib import Path

import pytest

from support.local_command import run_job
from support.programs import PROGRAMS

#: Relative paths of a program are in the volume that all ranks and attempts share.
WORK_IN_THE_VOLUME = {
    "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "shared"}}},
    "template": {"spec": {"containers": [{"name": "trainer", "workingDir": "/checkpoints"}]}},
}


def test_a_snapshot_in_a_relative_path_is_found_by_the_next_attempt(tmp_path: Path) -> None:
    command = ["torchrun", str(PROGRAMS / "snapshot_training.py")]
    outcome = run_job(tmp_path, {"nodes": 2, "command": command, **WORK_IN_THE_VOLUME})
    assert (outcome.exit_code, outcome.status["attempt"]) == (0, 2)
    assert list(tmp_path.glob(".ddpjob/runs/*/volumes/checkpoints/snapshot.pt"))
    assert "ValueError: failure in epoch 2" in outcome.output
    for rank in (0, 1):
        starts = [line for line in outcome.lines_of(rank) if line.startswith("rank")]
        assert starts == [f"rank {rank} starts at epoch 0", f"rank {rank} starts at epoch 2"]


def test_ranks_share_a_file_in_a_relative_path(tmp_path: Path) -> None:
    command = ["python", str(PROGRAMS / "main_process_first.py")]
    outcome = run_job(tmp_path, {"nodes": 2, "command": command, **WORK_IN_THE_VOLUME})
    assert outcome.exit_code == 0
    for rank in (0, 1):
        assert outcome.lines_of(rank) == [f"rank {rank} of [0, 1] reads ['rank 0', 'rank 1']"]


@pytest.mark.parametrize(
    ("launcher", "processes", "environment"),
    [("python", 1, "LightningEnvironment"), ("torchrun", 2, "TorchElasticEnvironment")],
)
def test_lightning_finds_the_process_group(tmp_path: Path, launcher: str, processes: int, environment: str) -> None:
    command = [launcher, str(PROGRAMS / "fabric_ranks.py")]
    spec = {"nodes": 2, "processesPerNode": processes, "command": command, "restart": {"maxRestarts": 0}}
    outcome = run_job(tmp_path, spec)
    assert outcome.exit_code == 0
    ranks = list(range(2 * processes))
    for node in (0, 1):
        printed = {line for line in outcome.lines_of(node, "rank" if processes == 1 else "node") if environment in line}
        assert printed == {
            f"{environment}: rank {node * processes + local} of {ranks}, node {node}, local rank {local}"
            for local in range(processes)
        }
