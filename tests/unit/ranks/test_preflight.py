"""What ranks compare and check before the training begins."""

import dataclasses
import importlib.metadata
import json
import re
import shutil
import socket
import threading
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from ddpjob_ranks.errors import ShortageError
from ddpjob_ranks.launch import preflight
from ddpjob_ranks.launch.preflight import Facts, RefusedError, disagreements_of, location
from support.workers import worker

THREE_EPOCHS = {"epochs": "3"}


def gang_of(*ranks):
    """Facts of ranks that agree, each with the changes given for it."""
    same = {"code": "aaa", "torch": "2.15", "epochs": "3"}
    return [
        Facts(rank=rank, location=f"host h{rank}", same={**same, **changes.get("same", {})})
        if set(changes) <= {"same"}
        else Facts(rank=rank, location=f"host h{rank}", same=same, **changes)
        for rank, changes in enumerate(ranks)
    ]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            [{}, {}, {"same": {"code": "bbb"}}],
            "code differs: rank 2 (host h2) has bbb, 2 ranks have aaa; run the same image or checkout everywhere",
        ),
        (
            [{"same": {"torch": "2.14"}}, {}, {}],
            "torch differs: rank 0 (host h0) has 2.14, 2 ranks have 2.15; run the same image or environment everywhere",
        ),
        (
            [{}, {"same": {"epochs": "5"}}],
            "epochs differs: rank 1 (host h1) has 5, rank 0 has 3; start every rank with the same configuration",
        ),
        (
            [{"gpu": "GPU-1"}, {"gpu": "GPU-2"}, {"gpu": "GPU-1"}],
            "rank 0 (host h0), rank 2 (host h2) share the GPU GPU-1; start one process per GPU",
        ),
    ],
)
def test_what_prevents_training_is_reported_in_one_line(ranks, message):
    assert disagreements_of(gang_of(*ranks)) == f"preflight: {message}"


def test_many_that_differ_are_counted():
    text = disagreements_of(gang_of(*[{}] * 7, *[{"same": {"code": "bbb"}}] * 6))
    assert "rank 7 (host h7), rank 8 (host h8), rank 9 (host h9), rank 10 (host h10) and 2 more" in text


def check_all(monkeypatch, everyone, workers):
    """The outcome of each worker's check, run at once over one store."""
    store, outcomes = HashStore(), {}
    monkeypatch.setattr(preflight, "READ_TIMEOUT", timedelta(hours=1))  # rank 0 waits only until all have read
    monkeypatch.setattr(preflight, "facts_of", lambda worker, *_: everyone[worker.rank])

    def run(index, worker):
        try:
            preflight.check(store, worker, THREE_EPOCHS, torch.device("cpu"), f"process {index}")
            outcomes[index] = "trains"
        except RefusedError as error:
            outcomes[index] = str(error)
        except ShortageError as error:
            outcomes[index] = f"shortage: {error}"

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return [outcomes.get(index) for index in range(len(workers))]


def test_every_rank_gets_the_same_result(monkeypatch):
    workers = [worker(rank, 3) for rank in range(3)]
    assert check_all(monkeypatch, gang_of({}, {}, {}), workers) == ["trains"] * 3
    results = check_all(monkeypatch, gang_of({}, {}, {"same": {"code": "bbb"}}), workers)
    assert len(set(results)) == 1
    assert "rank 2 (host h2) has bbb" in results[0]


def test_the_others_get_the_result_although_a_rank_dies_before_it(monkeypatch):
    everyone, store = gang_of({}, {"same": {"code": "bbb"}}), HashStore()
    monkeypatch.setattr(preflight, "facts_of", lambda worker, *_: everyone[worker.rank])
    monkeypatch.setattr(preflight, "READ_TIMEOUT", timedelta(seconds=0.05))
    store.set(preflight.key_of(1), json.dumps(dataclasses.asdict(everyone[1])))
    with pytest.raises(RefusedError, match="code differs"):
        preflight.check(store, worker(0, 2), THREE_EPOCHS, torch.device("cpu"), "process")


def test_a_full_volume_is_a_shortage_and_no_mistake_of_the_configuration(monkeypatch):
    """It once ended a job for good (exit code 2) after hours of training with complete checkpoints."""
    workers, full = [worker(rank, 2) for rank in range(2)], {"shortages": ["/checkpoints has 3 MiB free"]}
    outcomes = check_all(monkeypatch, gang_of(full, {}), workers)
    assert outcomes == ["shortage: preflight: rank 0 (host h0): /checkpoints has 3 MiB free"] * 2
    mistaken = check_all(monkeypatch, gang_of(full, {"same": {"code": "bbb"}}), workers)
    assert all("code differs" in outcome for outcome in mistaken)


def test_two_processes_of_one_rank_are_refused(monkeypatch):
    results = check_all(monkeypatch, gang_of({}, {}, {}), [worker(0, 3), worker(1, 3), worker(1, 3)])
    assert (
        results == ["preflight: two processes have rank 1, one of them on host h1; give each process its own RANK"] * 3
    )


def test_the_facts_of_a_rank(monkeypatch, tmp_path):
    monkeypatch.setenv("DDPJOB_CHECKPOINT_DIR", str(tmp_path / "not/yet/made"))
    monkeypatch.setattr(preflight, "free_bytes", lambda _: 2**20)
    facts = preflight.facts_of(worker(), THREE_EPOCHS, torch.device("cpu"))
    assert facts.same["torch"] == torch.__version__
    assert facts.same["numpy"] == importlib.metadata.version("numpy")
    assert facts.same["epochs"] == "3"
    assert facts.shortages == [
        f"{tmp_path}/not/yet/made has 1 MiB free for checkpoints; delete files there or use a larger volume"
    ]


def test_space_is_looked_up_outside_of_what_this_user_may_not_search(monkeypatch, tmp_path):
    """A PermissionError here would be a program's failure. What opens the folder says what to do, with exit code 2."""
    disk_usage = shutil.disk_usage

    def fails_below(path):
        if path != tmp_path and path.is_relative_to(tmp_path):
            raise PermissionError(13, "Permission denied", str(path))
        return disk_usage(path)

    monkeypatch.setattr(shutil, "disk_usage", fails_below)
    (tmp_path / "checkpoints").mkdir()
    assert preflight.free_bytes(str(tmp_path / "checkpoints")) > 0
    assert preflight.free_bytes(str(tmp_path / "checkpoints" / "new")) > 0


def test_a_checkpoint_folder_on_some_ranks_only_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("DDPJOB_CHECKPOINT_DIR", str(tmp_path))
    with_folder = preflight.facts_of(worker(0, 2), THREE_EPOCHS, torch.device("cpu"))
    monkeypatch.delenv("DDPJOB_CHECKPOINT_DIR")
    without = preflight.facts_of(worker(1, 2), THREE_EPOCHS, torch.device("cpu"))
    assert re.fullmatch(
        r"preflight: checkpoint folder differs: rank 1 \(.*\) has none, rank 0 has one;"
        " set DDPJOB_CHECKPOINT_DIR, or DDPJOB_CHECKPOINT_URI, on every rank, or on none",
        disagreements_of([with_folder, without]),
    )


def test_a_library_that_only_some_ranks_have_is_refused(monkeypatch):
    def version(name):
        if name == "pillow":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2.15"

    both = [preflight.facts_of(worker(0, 2), THREE_EPOCHS, torch.device("cpu"))]
    monkeypatch.setattr(importlib.metadata, "version", version)
    both.append(dataclasses.replace(preflight.facts_of(worker(1, 2), THREE_EPOCHS, torch.device("cpu")), rank=1))
    assert re.search(
        "pillow differs: rank 1 .* has none.*run the same image or environment everywhere", disagreements_of(both)
    )


def test_a_location_is_named_as_its_administrator_does(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "digits-1-0")
    assert location({}) == "host digits-1-0"
    assert location({"DDPJOB_NAME": "digits"}) == "pod digits-1-0"
    assert location({"DDPJOB_NAME": "digits", "NODE_NAME": "gpu7"}) == "pod digits-1-0 on node gpu7"
    assert location({"SLURMD_NODENAME": "gpu7"}) == "node gpu7"
