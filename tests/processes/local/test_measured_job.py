"""The job that `scale` applies on a cluster, run by the real operator's local backend."""

from pathlib import Path

import yaml

from ddpjob_measure.jobs import code, manifest
from ddpjob_measure.task import PREFIX, Figures, Task
from local_command import LocalCommand

TEMPLATE = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": "scale"}, "spec": {}}


def test_two_nodes_of_one_rank_each_are_measured(tmp_path: Path) -> None:
    task = Task(program="trainer", config={"recipe": "digits", "globalBatchSize": 64}, steps=2, windows=2)
    job = manifest(TEMPLATE, task, world_size=2, processes_per_node=1)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([code(job["metadata"]["name"]), job]))

    with LocalCommand(tmp_path / "job.yaml", tmp_path) as command:
        outcome = command.outcome(240)

    assert outcome.exit_code == 0, outcome.output
    (line,) = [line for line in outcome.output.splitlines() if PREFIX in line]
    figures = Figures.from_output(line[line.index(PREFIX) :])
    assert (figures.world_size, figures.global_batch_size, figures.images_per_second.num) == (2, 64, 2)
