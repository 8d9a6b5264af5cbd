"""The state that one rank has reaches all of them, and each node has it in memory once."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from ddpjob_session import shared_state
from support.fakes import Fake
from support.saved_states import to_bytes

STATE: dict[str, Any] = {"step": 7, "weight": torch.arange(100_000.0)}


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.values: list[object] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=60)
        self.num_sent = 0


class Rank(Fake):
    """One of them."""

    def __init__(self, rank: int, all_: Threads) -> None:
        self.rank, self.world_size, self._all = rank, all_.world_size, all_

    def all_gather(self, value):
        self._all.values[self.rank] = value
        self._all.barrier.wait()
        found = list(self._all.values)
        self._all.barrier.wait()
        return found

    def broadcast(self, values, source):
        self._all.num_sent += self.rank == source
        values.copy_(self.all_gather(values)[source])
        self._all.barrier.wait()


@pytest.mark.parametrize(
    ("nodes", "source", "num_files", "is_sent"),
    [
        ("aaa", 0, 1, False),
        ("aabb", 0, 2, True),
        ("aabb", 3, 3, True),  # which is not the first of its node
        ("abc", 1, 3, True),
    ],
)
def test_each_node_has_it_once(monkeypatch, nodes, source, num_files, is_sent):
    monkeypatch.setattr(shared_state, "PIECE_BYTES", 1 << 17)
    created: list[int] = []
    monkeypatch.setattr(shared_state, "_created", lambda: created.append(file := os.memfd_create("state")) or file)
    threads = Threads(len(nodes))
    moved = [0] * len(nodes)

    def receive(rank: int):
        first = nodes.index(nodes[rank])

        def find(offers):
            return None if offers[first] is None else os.open(offers[first][0], os.O_RDONLY)

        def count():
            moved[rank] += 1

        payload = bytearray(to_bytes(STATE)) if rank == source else None
        return shared_state.receive(
            Rank(rank, threads), payload, count, source=source, is_first_of_node=rank == first, find=find
        )

    with ThreadPoolExecutor(len(nodes)) as pool:
        contents = list(pool.map(receive, range(len(nodes))))
    assert all(content["step"] == 7 and torch.equal(content["weight"], STATE["weight"]) for content in contents)
    assert len(created) == num_files
    assert (threads.num_sent > 1) == is_sent == all(moved)


def test_a_file_that_is_offered_is_known_by_what_it_is_and_not_by_its_place():
    file = shared_state._created()
    path, target = shared_state._offer(file)
    assert shared_state._found([None, (path, "/memfd:of-another-node (deleted)"), ("/proc/0/fd/1", target)]) is None
    found = shared_state._found([None, (path, target)])
    assert os.path.sameopenfile(found, file)
    os.close(file)
    os.close(found)


def test_what_no_rank_has_and_what_one_alone_has():
    alone = Rank(0, Threads(1))
    assert shared_state.receive(alone, None, lambda: None) is None
    assert shared_state.receive(alone, bytearray(to_bytes(STATE)), lambda: None)["step"] == 7
    threads = Threads(2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda rank: shared_state.receive(Rank(rank, threads), None, lambda: None), (0, 1))) == [
            None,
            None,
        ]
