"""Rank 0 serves the store for all ranks, so it holds several sockets for each of them."""

import os
import resource
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from ddpjob_ranks.launch import open_files
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch.timeline import Timeline
from ddpjob_ranks.watch.watchdog import Watchdog
from support.workers import worker

SOFT_LIMIT = 128
OPEN_FILES = Path("/proc/self/fd")
RANK_0 = f"""
import resource
import sys
from ddpjob_ranks.launch import rendezvous
from support.workers import worker

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({SOFT_LIMIT}, hard))
store = rendezvous.open_store(worker(rank=0, world_size=200, master_port=int(sys.argv[1])))
print("open", flush=True)
sys.stdin.read()
"""


def free_port() -> int:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port


def test_rank_0_serves_more_connections_than_the_soft_limit_of_open_files():
    port = free_port()
    rank_0 = subprocess.Popen(
        [sys.executable, "-c", RANK_0, str(port)],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with rank_0:
        assert rank_0.stdout is not None
        assert rank_0.stdout.readline() == "open\n"
        timeout = timedelta(seconds=60)
        clients = [TCPStore("127.0.0.1", port, timeout=timeout, wait_for_workers=False) for _ in range(SOFT_LIMIT + 50)]
        clients[0].set("key", "value")
        assert clients[-1].get("key") == b"value"
        assert rank_0.stdin is not None
        rank_0.stdin.close()


def test_the_watchdog_holds_two_connections_to_the_store():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    before = len(list(OPEN_FILES.iterdir()))
    with Watchdog(Limits(first_step_seconds=600, step_seconds=300), Timeline()) as watchdog:
        watchdog.watch(store, worker(rank=0, world_size=2))
        num_ends = len(list(OPEN_FILES.iterdir())) - before
    assert num_ends == 2 * 2, "both ends of each are in this process"


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (256, 100_000, [(6024, 100_000)]),
        (256, resource.RLIM_INFINITY, [(6024, resource.RLIM_INFINITY)]),
        (256, 4096, [(4096, 4096)]),
        (50_000, 100_000, []),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, []),
    ],
)
def test_the_soft_limit_is_raised_where_it_is_too_low(monkeypatch, capsys, soft, hard, expected):
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    open_files.allow(1000)
    assert limits == expected
    assert ("1000 ranks may need 6024" in capsys.readouterr().err) == (hard == 4096)
