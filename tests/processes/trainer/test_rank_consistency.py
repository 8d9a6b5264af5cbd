import os
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from PIL import Image

import ddpjob_trainer
from ddpjob_ranks import contract
from support import training_runs
from support.forked_ranks import started

SOURCES = Path(ddpjob_trainer.__file__).parents[1]


def find_modules_at_python_path() -> None:
    """Forked ranks have read PYTHONPATH before it was set for one of them."""
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(":")


def refused(folder, *keys, own):
    """The termination messages of two ranks of which each has keys and variables of its own, and which refuse to train."""
    with started(folder, *keys, ranks=2, own=own, first=find_modules_at_python_path) as run:
        assert run.wait() == [contract.EXIT_BAD_CONFIG] * 2, run.text(0) + run.text(1)
    assert "Traceback" not in run.text(0) + run.text(1)
    return [run.message(0), run.message(1)]


def test_a_rank_with_a_configuration_of_its_own_is_refused(tmp_path):
    messages = refused(tmp_path, own={1: (("epochs=2",), {"NODE_NAME": "gpu7", "DDPJOB_NAME": "a"})})
    expected = (
        f"preflight: epochs differs: rank 1 (pod {socket.gethostname()} on node gpu7) has 2, rank 0 has the recipe's default;"
        " start every rank with the same configuration"
    )
    assert messages == [f"rank {rank}\n{expected}" for rank in range(2)]


def test_a_rank_with_code_of_its_own_is_refused(tmp_path):
    for package in SOURCES.glob("ddpjob_*"):
        shutil.copytree(package, tmp_path / "code" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "code/ddpjob_recipes/digits.py").open("a") as module:
        module.write("# one more line\n")
    environs = [{}, {"PYTHONPATH": str(tmp_path / "code")}]
    with ExitStack() as stack:
        runs = [
            stack.enter_context(training_runs.started(tmp_path / str(rank), ranks=0, environ={**pod, **environs[rank]}))
            for rank, pod in enumerate(training_runs.ranks_by_hand(2))
        ]
        assert [run.wait() for run in runs] == [contract.EXIT_BAD_CONFIG] * 2, "\n".join(run.text for run in runs)
    messages = [run.message for run in runs]
    assert messages[0].startswith("rank 0\npreflight: code differs: rank 1 (host ")
    assert messages[0].endswith("; run the same image or checkout everywhere")


def test_other_held_out_data_on_one_rank_are_refused(tmp_path):
    for rank, grey in enumerate([10, 11]):
        for name in ("train/a", "train/b", "test/a", "test/b"):
            (tmp_path / f"data{rank}" / name).mkdir(parents=True)
            pixel = (grey if name == "test/b" else 10,) * 3
            Image.new("RGB", (32, 32), pixel).save(tmp_path / f"data{rank}" / name / "1.png")
    keys = ("recipe=resnet18-cifar10", "globalBatchSize=2")
    own = {rank: ((), {contract.DDPJOB_DATA_DIR: str(tmp_path / f"data{rank}")}) for rank in range(2)}
    messages = refused(tmp_path, *keys, own=own)
    assert "preflight: held-out data differs: rank 1 (host " in messages[0]
    assert messages[0].endswith("; give every rank the same files (DDPJOB_DATA_DIR)")
