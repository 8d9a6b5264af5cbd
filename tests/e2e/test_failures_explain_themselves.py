"""A job whose script fails ends as Failed with the script's own exception in its status."""

import pytest
import yaml

FAILS_ON_RANK_1 = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    raise ValueError("label 12 is out of range for 10 classes")
dist.barrier()
"""

ALWAYS_FAILS = """
import os

raise SystemExit(f"attempt {os.environ['DDPJOB_ATTEMPT']} has had enough")
"""


@pytest.mark.parametrize(
    ("command", "nodes", "processes"),
    [
        pytest.param(["python", "/script/train.py"], 2, 1, id="plain python"),
        pytest.param(["torchrun", "/script/train.py"], 1, 2, id="torchrun, two processes in one pod"),
        pytest.param(["torchrun", "/script/train.py"], 2, 1, id="torchrun, two pods"),
    ],
)
def test_the_exception_stands_in_the_status(job, command, nodes, processes) -> None:
    job.apply_script(
        "failing",
        FAILS_ON_RANK_1,
        command=command,
        nodes=nodes,
        processesPerNode=processes,
        restart={"maxRestarts": 0},
    )

    job.wait_end(seconds=180)
    shown = yaml.safe_load(job.kubectl("get", "ddpjob", "failing", "-n", job.namespace, "-o", "yaml"))["status"]
    assert (shown["phase"], shown["reason"]) == ("Failed", "ProgramError")
    assert shown["failure"]["message"] == "ValueError: label 12 is out of range for 10 classes"
    assert (shown["failure"]["rank"], shown["failure"]["exitCode"]) == (nodes - 1, 1)
    assert shown["failure"]["pod"] == f"failing-1-{nodes - 1}"
    assert shown["failure"]["node"]


def test_the_evidence_of_every_kept_attempt_can_be_read(job) -> None:
    job.apply_script(
        "failing",
        ALWAYS_FAILS,
        command=["python", "/script/train.py"],
        restart={"maxRestarts": 2},
    )

    status = job.wait_end(seconds=120)
    assert (status["attempt"], status["restarts"]["counted"]) == (3, 2)
    for attempt in (1, 2, 3):
        assert f"attempt {attempt} has had enough" in job.log(attempt)
    assert status["failure"]["message"] == "attempt 3 has had enough"


def test_the_trainers_own_words_reach_the_status(job) -> None:
    job.apply("no-data", nodes=2, trainer={"recipe": "resnet18-cifar10"})

    status = job.wait_end(seconds=120)
    assert (status["phase"], status["reason"], status["attempt"]) == ("Failed", "BadConfig", 1)
    assert "/data" in status["failure"]["message"]
