"""The copy of the state for a restart in place: no larger than the memory that is left."""

import os
from types import SimpleNamespace

import pytest
import torch

from ddpjob_ranks import slots
from ddpjob_ranks.generation import Generation
from ddpjob_ranks.host_memory import available_bytes
from ddpjob_session.memory import MARGIN_BYTES, Memory
from ddpjob_session.state import State

MIB = 2**20
MEMINFO = "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"


@pytest.mark.parametrize(
    ("limit", "available"), [("max\n", 8000 * 1024), ("6000000\n", 1_300_000), ("600000000\n", 8000 * 1024)]
)
def test_what_is_left_is_bounded_by_the_host_and_by_the_limit_without_cached_files(tmp_path, limit, available):
    files = {"memory.max": limit, "memory.current": "5000000\n", "meminfo": MEMINFO}
    files["memory.stat"] = "anon 4000000\nfile 900000\nshmem 600000\ninactive_file 100000\nactive_file 200000\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path, tmp_path / "meminfo") == available


def test_without_a_cgroup_the_host_alone_counts(tmp_path):
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert available_bytes(tmp_path, tmp_path / "meminfo") == 8000 * 1024


@pytest.mark.parametrize(("left", "kept"), [(5 * MIB, True), (3 * MIB, False)])
def test_a_state_that_does_not_fit_is_not_kept_and_that_is_reported(monkeypatch, capsys, left, kept):
    monkeypatch.setattr("ddpjob_session.memory.available_bytes", lambda: left + MARGIN_BYTES)
    state = State({"model": torch.nn.Linear(1024, 1024, bias=False)}, program="this test")  # 4 MiB
    node, own = (os.memfd_create(name) for name in ("node", "own"))
    generation = Generation(number=1, pipe=-1, state_memory=node, own_memory=own)
    state.step = 7
    Memory(generation, state, SimpleNamespace(rank=1), keep_generators=False).save()
    step = slots.step_of(node)
    os.close(node)
    os.close(own)
    refusal = (
        "rank 1: its state is not kept in memory: it needs 4 MiB, and the memory limit of the pod or the host leaves"
    )
    assert (step == 7, refusal in capsys.readouterr().err) == (kept, not kept)
