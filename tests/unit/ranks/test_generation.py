"""Which generation and which store the ranks of a pod join when it, or another one, was replaced."""

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ddpjob_ranks import contract, distributed, generation, slots
from ddpjob_ranks.errors import PeersMissingError, ReplacedError
from ddpjob_ranks.launch import join, preflight, rendezvous
from ddpjob_ranks.launch.follow import Follower
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.launch.join import generation_to_join
from support.fakes import Fake
from support.workers import worker


class Interrupted(Fake):
    """A store in which another process looks for the newest generation after each key that one writes."""

    def __init__(self, store: HashStore) -> None:
        self.store, self.found = store, list[Any]()

    def check(self, keys):
        return self.store.check(keys)

    def set(self, key, value):
        self.store.set(key, value)
        self.found.append(generation_to_join(self.store, node_rank=0))


def test_a_pod_that_looks_while_a_survivor_announces_its_generation_joins_no_earlier_one(memory):
    """In the store of a new pod of rank 0, which knows of no generation."""
    store = Interrupted(HashStore())
    mine = generation.Generation(number=5, pipe=-1, state_memory=-1, own_memory=-1, stores=memory)
    mine.announce(store, 1, node_rank=1, local_rank=0)
    assert set(store.found) == {None, 5}


@pytest.mark.parametrize(
    ("num_announced", "last_of_the_lost_rank", "joined"),
    [(0, 0, None), (1, 1, 2), (2, 1, 2), (3, 3, 4)],
    ids=["no session", "nobody has noticed", "the others wait", "later"],
)
def test_a_replaced_pod_begins_with_the_first_generation_that_lacks_its_ranks(
    num_announced, last_of_the_lost_rank, joined
):
    store = HashStore()
    for number in range(1, num_announced + 1):
        store.set(f"ddpjob/generation/{number}", "")
        if number <= last_of_the_lost_rank:
            store.set(f"ddpjob/generation/{number}/1", "")
    assert generation_to_join(store, node_rank=1) == joined


class SharedStore(Fake):
    """A store on which others act between the operations of this process. They have done all once `finish` returns."""

    def __init__(self, store, others):
        self._store, self._others, self._num_operations = store, others, 0

    def __getattr__(self, name):
        def operation(*arguments):
            self._act(until=self._num_operations)
            self._num_operations += 1
            return getattr(self._store, name)(*arguments)

        return operation

    def finish(self):
        self._act(until=math.inf)

    def _act(self, *, until):
        while self._others and self._others[0][0] <= until:
            self._others.pop(0)[1]()


@pytest.mark.parametrize("newest", [1, 2])
def test_a_pod_and_the_one_that_replaces_it_never_begin_the_same_generation(memory, monkeypatch, newest):
    """The node of the first one responds again while the second one starts; two processes of one rank would end the job."""
    monkeypatch.setenv(contract.RANK, "3")
    seen = set()
    for replaced_at, joined_at in itertools.combinations_with_replacement(range(8), 2):  # more than its operations
        store, joined, is_fenced = HashStore(), list[Any](), False
        store.set("ddpjob/generation/1/1", "")
        for number in range(1, newest + 1):
            store.set(f"ddpjob/generation/{number}", "")
        replace = partial(generation.replace, store, {1: 1})
        join = partial(lambda store, joined: joined.append(generation_to_join(store, node_rank=1)), store, joined)
        shared = SharedStore(store, [(replaced_at, replace), (joined_at, join)])
        mine = generation.Generation(number=2, pipe=-1, state_memory=-1, own_memory=-1, stores=memory)
        try:
            mine.announce(shared, 0, node_rank=1, local_rank=0)
        except ReplacedError:
            is_fenced = True
        shared.finish()
        seen.add((is_fenced, *joined))
    assert seen == {(True, 2), (True, 3), (False, 3)}


def test_a_store_that_is_lost_while_a_pod_joins_is_looked_for_again(memory, monkeypatch):
    """Two pods are replaced, and that of rank 0 later: until then the Service leads to the store that ends."""
    rank = worker(1, 2)
    found = HashStore()
    generation.Generation(number=2, pipe=-1, state_memory=-1, own_memory=-1, stores=memory).announce(
        found, 0, node_rank=1, local_rank=0
    )
    stores: Iterator[Any] = iter([dist.DistNetworkError("connection reset by peer"), found])

    def open_store(*_: object, **__: object) -> tuple[HashStore, int]:
        if isinstance(store := next(stores), Exception):
            raise store
        return store, 0

    monkeypatch.setattr(rendezvous, "open_store_of_attempt", open_store)
    assert join.find_generation(rank) == 3


def test_a_pod_that_joins_waits_for_others_that_have_not_opened_their_session_yet(memory, monkeypatch):
    rank = worker(1, 2)
    store, looks = HashStore(), []

    def wait_until(probe, **_: object) -> None:
        looks.append(probe())
        generation.Generation(number=1, pipe=-1, state_memory=-1, own_memory=-1, stores=memory).announce(
            store, 0, node_rank=0, local_rank=0
        )
        looks.append(probe())

    monkeypatch.setattr(rendezvous, "open_store_of_attempt", lambda *_, **__: (store, 0))
    monkeypatch.setattr(rendezvous, "wait_until", wait_until)
    assert join.find_generation(rank) == 1
    assert looks == ["no other rank of the attempt has joined the store of rank 0", None]


def test_the_pods_that_others_have_replaced_are_kept_from_joining():
    store = HashStore()
    generation.replace(store, {1: 2})
    assert [generation.is_replaced(store, 1, number) for number in range(3)] == [True, True, False]
    assert not generation.is_replaced(store, 0, 0)


@pytest.mark.parametrize(("text", "number"), [(None, 0), ("1:3", 0), ("0:2,1:1", 2)])
def test_a_store_has_the_number_of_its_pod_and_knows_which_pods_were_replaced_before(text, number):
    """The store that knew of them is gone with the lost pod."""
    store = HashStore()
    assert generation.number_of_store(store) is None
    environ = {} if text is None else {contract.DDPJOB_REPLACEMENTS: text}
    generation.set_up_store(store, environ)
    assert generation.number_of_store(store) == number
    assert generation.is_replaced(store, 1, 0) == (text is not None)


def test_the_newest_store_is_the_one_that_ranks_joined_or_that_was_found(memory):
    assert generation.newest_store(memory) == slots.NO_STEP
    for number, slot, newest in ((0, generation.JOINED_SLOT, 0), (2, generation.FOUND_SLOT, 2)):
        generation.record_store(memory, number, slot)
        assert generation.newest_store(memory) == newest


@pytest.mark.parametrize(
    ("joined", "of_ranks", "left_behind"),
    [
        (0, {}, True),
        (1, {}, False),  # the ranks have yet to join
        (1, {0: 1, 1: 1}, False),
        (1, {0: 1, 1: 0}, True),  # the rank, alone, joined while the name led to the earlier pod, which still responds
        (0, {0: 1, 1: 1}, True),  # where no generation of the others would be seen
    ],
)
def test_a_node_leaves_its_generation_when_it_is_left_behind_in_an_older_store(memory, joined, of_ranks, left_behind):
    generation.record_store(memory, 1, generation.JOINED_SLOT)
    generation.record_store(memory, 0, generation.RANKS_SLOT)  # of the generation before
    generation.forget_joined(memory, 2)
    for local_rank, number in of_ranks.items():
        mine = generation.Generation(number=2, pipe=-1, state_memory=-1, own_memory=-1, stores=memory)
        mine.announce(HashStore(), number, node_rank=1, local_rank=local_rank)
    assert Follower(worker(2, 4, local_world_size=2), 2, memory, joined).is_left_behind(1) == left_behind


def test_what_follows_the_ranks_goes_on_while_no_store_responds(memory, monkeypatch):
    """Ranks that are connected to each other train on, and later failures of other nodes are to be noticed."""
    results = iter([PeersMissingError("rank 0 does not respond"), dist.DistNetworkError("reset"), (HashStore(), 3)])

    def open_store(*_: object, **__: object) -> object:
        if isinstance(result := next(results), Exception):
            raise result
        return result

    monkeypatch.setattr(rendezvous, "open_store_of_attempt", open_store)
    monkeypatch.setattr(rendezvous, "wait_for_key", lambda *_: None)
    follower = Follower(worker(1, 2), 2, memory)
    follower.follow()
    assert follower.joined == 3


LOOKS_AT_A_HOST_THAT_HANGS = """
import socket
from ddpjob_ranks.launch import follow, rendezvous
from ddpjob_ranks.launch.identity import Worker
follow.LOOK_SECONDS, rendezvous.CONNECT_SECONDS = 0.0, 0.1
host = socket.create_server(("127.0.0.1", 0))  # which connects and does not respond, as the kernel of a stopped process
worker = Worker(
    launcher="test", rank=1, world_size=2, local_rank=0, local_world_size=1,
    master_addr="127.0.0.1", master_port=host.getsockname()[1],
)
follow.Follower(worker, 2, -1)._end_at_newer_store()
"""


def test_looks_at_a_host_that_hangs_take_no_more_and_more_threads():
    done = subprocess.run([sys.executable, "-c", LOOKS_AT_A_HOST_THAT_HANGS], timeout=300, check=False)
    assert done.returncode == contract.EXIT_PROGRAM_ERROR


def test_a_rank_counts_as_joined_before_it_asks_the_store_anything(memory, monkeypatch):
    """The store may stop to respond there, and the process next to the rank have joined the next one."""
    seen = []
    monkeypatch.setattr(generation, "is_replaced", lambda *_: seen.append(generation.lowest_joined(memory, 1)))
    mine = generation.Generation(number=2, pipe=-1, state_memory=-1, own_memory=-1, stores=memory)
    mine.announce(HashStore(), 0, node_rank=1, local_rank=0)
    assert seen == [0]


@pytest.mark.parametrize("found", [0, 1], ids=["the connection alone was lost", "the store of the next pod"])
def test_a_survivor_that_loses_the_store_while_it_waits_meets_the_others_again(memory, monkeypatch, found):
    """A pod of rank 0 that was asked to stop serves its store for moments after its ranks have ended."""
    mine = generation.Generation(number=2, pipe=-1, state_memory=-1, own_memory=-1, stores=memory)
    monkeypatch.setenv(contract.DDPJOB_REPLACEMENT_SECONDS, "300")
    monkeypatch.setattr(generation, "_current", [mine])
    joined: list[Any] = []
    lost = iter([dist.DistNetworkError("connection reset by peer")])

    def open_store(_: Worker) -> HashStore:
        if error := next(lost, None):  # while it announces itself
            raise error
        number = found if joined else 0
        assert number >= generation.newest_store(memory), "it would be refused, and this rank wait for minutes"
        joined.append(number)
        mine.announce(store := HashStore(), number, node_rank=1, local_rank=0)
        return store

    def check(*_: object) -> None:
        if len(joined) == 1:
            raise dist.DistNetworkError("connection reset by peer")

    monkeypatch.setattr(distributed, "open_store", open_store)
    monkeypatch.setattr(preflight, "check", check)
    distributed.meet(worker(1, 2), {}, torch.device("cpu"))
    assert joined == [0, found]


def test_a_rank_whose_connection_was_lost_in_the_checks_is_not_taken_for_a_second_process(memory, monkeypatch):
    """It once refused all ranks with exit code 2, which ends the job."""
    mine = generation.Generation(number=1, pipe=-1, state_memory=-1, own_memory=-1, stores=memory)
    rank = worker(1, 2)
    monkeypatch.setenv(contract.DDPJOB_REPLACEMENT_SECONDS, "300")
    monkeypatch.setattr(generation, "_current", [mine])
    store, waits = HashStore(), []

    def wait(*_: object, **__: object) -> None:
        waits.append(store)
        if len(waits) == 1:
            raise dist.DistNetworkError("connection reset by peer")
        if not store.check([preflight.DECISION]):
            store.set(preflight.DECISION, '["", ""]')  # as rank 0 does

    monkeypatch.setattr(distributed, "open_store", lambda _: store)
    monkeypatch.setattr(preflight, "wait_until", wait)
    assert distributed.meet(rank, {}, torch.device("cpu")) is store
    assert len(waits) == 2


def test_the_first_rank_of_a_pod_reports_how_often_the_pod_was_replaced():
    """Two ranks in each pod: the second pod is the second replacement, and the fourth the first."""
    environ = {contract.DDPJOB_REPLACEMENTS: "1:2,3:1", contract.LOCAL_WORLD_SIZE: "2"}
    ranks = [environ | {contract.RANK: str(rank), contract.LOCAL_RANK: str(rank % 2)} for rank in range(8)]
    assert list(map(generation.replacement_of_this_pod, ranks)) == [0, 0, 2, 0, 0, 0, 1, 0]


def test_a_rank_that_announces_itself_remembers_the_store_unless_its_pod_was_replaced(memory, monkeypatch):
    monkeypatch.setenv(contract.RANK, "3")
    store = HashStore()
    generation.replace(store, {1: 1})
    mine = generation.Generation(number=2, pipe=-1, state_memory=-1, own_memory=-1, stores=memory)
    with pytest.raises(ReplacedError, match="rank 3 runs in another pod now"):
        mine.announce(store, 1, node_rank=1, local_rank=0)
    assert (generation.newest(store), generation.newest_store(memory)) == (0, slots.NO_STEP)
    monkeypatch.setenv(contract.DDPJOB_REPLACEMENTS, "0:1,1:1")
    mine.announce(store, 1, node_rank=1, local_rank=0)
    assert (generation.newest(store), generation.newest_store(memory)) == (2, 1)
