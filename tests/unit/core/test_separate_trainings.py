from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.model import NO_LOG, LogEnd
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.separate_trainings import warning
from support.builders import NOW, broken, ended, job, program, running

STANDALONE = ["torchrun", "--standalone", "train.py"]


@pytest.mark.parametrize(
    ("command", "nodes", "warns"),
    [
        (STANDALONE, 2, True),
        (STANDALONE, 1, False),
        (["torchrun", "--nnodes=1", "t.py"], 2, True),
        (["torchrun", "--nnodes", "1:1", "t.py"], 2, True),
        (["python", "-m", "torch.distributed.run", "--nnodes", "1", "t.py"], 2, True),
        (["bash", "-c", "set -e\ntorchrun --standalone --nproc-per-node 8 t.py | tee log"], 2, True),
        (["torchrun", "--nnodes=16", "t.py"], 16, False),
        (["torchrun", "--nnodes=$NNODES", "t.py"], 2, False),
        (["torchrun", "t.py", "--name", "run --standalone-ish"], 2, False),
        (["python", "t.py", "--standalone"], 2, False),
    ],
)
def test_a_command_by_which_each_pod_trains_alone_is_warned_of(command: list[str], nodes: int, warns: bool) -> None:
    of = job(nodes=nodes, command=command)
    assert bool(warning(of.spec)) == warns
    assert ("trains alone" in plan(running(of), NOW).status.message) == warns


@pytest.mark.parametrize(
    ("command", "processes", "refused"),
    [
        ("accelerate launch --cpu acc.py --lr 1", 2, True),
        ("python -m accelerate.commands.launch --num_processes 2 acc.py --lr 1", 2, True),
        ("accelerate launch acc.py", 1, False),
        ("accelerate launch --multi_gpu --num_processes 2 acc.py", 2, False),
        ("accelerate launch --config_file c.yaml acc.py", 2, False),
        ("torchrun acc.py", 2, False),
    ],
)
def test_accelerate_that_starts_one_process_of_several_is_refused_with_the_command_to_use(
    command: str, processes: int, refused: bool
) -> None:
    text = warning(job(nodes=1, command=command.split(), processesPerNode=processes).spec)
    assert ('command: ["torchrun", "acc.py", "--lr", "1"]' in text) == refused == bool(text)


@pytest.mark.parametrize(
    ("command", "of", "refused"),
    [
        ("accelerate launch acc.py", {"gpusPerNode": 8}, False),
        ("accelerate launch --cpu acc.py", {"gpusPerNode": 8}, True),
        ("accelerate launch acc.py", {"gpusPerNode": 1, "processesPerNode": 1}, False),
        ("accelerate launch acc.py", {"processesPerNode": 8, "template": {"spec": {"resourceClaims": [{}]}}}, False),
    ],
)
def test_accelerate_starts_a_process_for_each_of_several_gpus(command: str, of: dict[str, Any], refused: bool) -> None:
    assert bool(warning(job(nodes=1, command=command.split(), **of).spec)) == refused


def test_the_command_to_use_is_not_made_of_a_script_of_a_shell() -> None:
    of = job(nodes=1, command=["bash", "-c", "cd /w && accelerate launch acc.py"], processesPerNode=2)
    assert 'command: ["torchrun", "SCRIPT"]' in warning(of.spec)


LIGHTNING = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/1"
TORCH = "[rank0]:[W1126 10:00:00 ProcessGroupNCCL.cpp:1553] Warning: destroy_process_group() was not called"
OTHERS = "[rank1]: Traceback\nGLOBAL_RANK: 1, MEMBER: 2/2\nGLOBAL_RANK: 0, MEMBER: 2/2 [rank0]: quoted"


@pytest.mark.parametrize(
    ("first", "second", "doubts"),
    [
        (LogEnd(progress=Progress(step=9)), LogEnd(progress=Progress(step=9)), True),
        (LogEnd(progress=Progress(step=9)), NO_LOG, False),
        (end_of_log(LIGHTNING), end_of_log(f"{LIGHTNING}\ndone"), True),
        (end_of_log(LIGHTNING), end_of_log(OTHERS), False),
        (end_of_log(f"a\n{TORCH}"), end_of_log(TORCH), True),
    ],
)
def test_the_success_of_pods_that_all_print_as_rank_0_does_is_doubted(
    first: LogEnd, second: LogEnd, doubts: bool
) -> None:
    of = program(nodes=2)
    done = broken(of, ended(of, 0), ended(of, 1))
    made = plan(replace(done, logs={"pod-uid-1-0": first}), NOW)
    assert made.lookups == (ReadLog(pod="job-1-1", uid="pod-uid-1-1"),)
    status = plan(replace(done, logs={"pod-uid-1-0": first, "pod-uid-1-1": second}), NOW).status
    assert status.phase == "Succeeded"
    assert ("nobody may have joined the master" in status.message) == doubts
