"""What a launcher decides of restarts in place, the memory that ranks leave to each other, and where a replaced pod begins."""

import itertools
import math
import os
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ddpjob_ranks import contract, distributed, generation, slots
from ddpjob_ranks.errors import PeersMissingError, ReplacedError
from ddpjob_ranks.launch import follow
from ddpjob_ranks.launch.follow import Follower
from ddpjob_ranks.launch.identity import Worker
from ddpjob_ranks.launch.join import generation_to_join
from ddpjob_ranks.launch.supervisor import MODULES, is_final, is_stuck


@pytest.mark.parametrize(
    ("reached", "stuck"),
    [([], False), ([7], False), ([7, 7], False), ([7, 7, 7], True), ([7, 7, 8], False), ([7, 8, 8], False)],
)
def test_two_restarts_without_a_further_step_are_the_last(reached, stuck):
    assert is_stuck(reached) == stuck


REPLACED = {contract.DDPJOB_REPLACEMENT_SECONDS: "200"}


@pytest.mark.parametrize(
    ("environ", "code", "has_begun", "seconds", "final"),
    [
        ({}, 1, True, 5, False),
        ({}, contract.EXIT_PEER_LOST, False, 5, False),
        ({}, contract.EXIT_BAD_CONFIG, True, 5, True),
        ({}, contract.EXIT_CHECKPOINTED, True, 5, True),
        ({contract.DDPJOB_FINAL_EXIT_CODES: "8,9"}, 9, True, 5, True),  # the operator has a rule for it
        ({contract.DDPJOB_FINAL_EXIT_CODES: "8,9"}, 1, True, 5, False),
        (REPLACED, contract.EXIT_CHECKPOINTED, True, 5, False),  # another pod was asked to stop, and is replaced
        (REPLACED, contract.EXIT_TERMINATED, True, 5, False),
        (REPLACED, contract.EXIT_TERMINATED, False, 5, True),  # this one
        (REPLACED, contract.EXIT_FENCED, True, 5, True),
        (REPLACED, contract.EXIT_PEER_LOST, False, 199, False),
        (REPLACED, contract.EXIT_PEER_LOST, False, 200, True),  # no pod has come
        (REPLACED, contract.EXIT_PEER_LOST, True, 200, False),
        (REPLACED | {contract.DDPJOB_FINAL_EXIT_CODES: "143"}, contract.EXIT_TERMINATED, True, 5, True),
    ],
)
def test_which_ends_of_a_generation_are_final(environ, code, has_begun, seconds, final):
    assert is_final(code, environ, has_begun=has_begun, seconds=seconds) == final


@pytest.fixture
def memory():
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def test_slots_keep_the_content_of_their_step_and_take_only_the_memory_that_is_written(memory):
    assert [slots.step_of(memory, slot) for slot in range(2)] == [slots.NO_STEP] * 2
    slots.write(memory, 5, lambda file: file.write(b"five, a long text"), slot=1)
    slots.write(memory, 6, lambda file: file.write(b"six"), slot=0)
    slots.write(memory, 7, lambda file: file.write(b"seven"), slot=1)
    assert [(slots.step_of(memory, slot), slots.read(memory, slot)) for slot in range(2)] == [
        (6, b"six"),
        (7, b"seven"),
    ]
    assert os.fstat(memory).st_blocks * 512 < 2**16
    slots.empty(memory)
    assert slots.step_of(memory, 1) == slots.NO_STEP


WRITER = """
import os, sys
from ddpjob_ranks import slots
slots.write(int(sys.argv[1]), 9, lambda file: (file.write(b"half"), file.flush(), os._exit(9)))
"""


def test_a_slot_whose_writer_was_killed_is_empty(memory):
    slots.write(memory, 8, lambda file: file.write(b"eight"))
    subprocess.run([sys.executable, "-c", WRITER, str(memory)], pass_fds=[memory], check=False)
    assert slots.step_of(memory) == slots.NO_STEP


IMPORTS = """
import sys, torch
from importlib import import_module
def refuse(*_):
    sys.exit("CUDA is asked, and cannot be used in a fork any more")
for name in ("is_available", "device_count", "current_device", "_lazy_init"):
    setattr(torch.cuda, name, refuse)
torch._C._cuda_getDeviceCount = refuse
for name in sys.argv[1:]:
    import_module(name)
"""


def test_what_ranks_are_forked_from_does_not_touch_a_gpu():
    modules = [*MODULES, "ddpjob_trainer.worker"]
    done = subprocess.run([sys.executable, "-c", IMPORTS, *modules], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


FORKS = """
import os, sys
from ddpjob_ranks.launch.template import Template
template = Template(["numpy.random"], os.environ, lambda: None, "")
for _ in range(2):
    os.waitpid(template.fork([sys.argv[1]], os.environ, []), 0)
"""


def test_forked_ranks_draw_different_numbers(tmp_path):
    """As processes do that import NumPy themselves."""
    script = tmp_path / "script.py"
    script.write_text("import random, numpy\nprint(random.random(), numpy.random.rand())")
    done = subprocess.run([sys.executable, "-c", FORKS, script], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 4, done.stdout + done.stderr


def test_an_environment_may_be_larger_than_a_message_over_a_socket(tmp_path):
    """As that of a pod with the variables of a thousand Services."""
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(sum(len(value) for name, value in os.environ.items() if 'LARGE_' in name))")
    environ = {**os.environ, **{f"LARGE_{number}": "x" * 100_000 for number in range(10)}}
    command = [sys.executable, "-c", FORKS, script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "1000000\n" * 2, done.stderr


CANNOT_FORK = """
import os
fork, template = os.fork, os.getpid()
def fork_once():
    if os.getpid() != template:
        raise OSError("too many processes")
    return fork()
os.fork = fork_once
"""
FORK = """
import os
from ddpjob_ranks.launch.template import Template, TemplateError
try:
    Template(["cannot_fork"], os.environ, lambda: None, "").fork(["script.py"], os.environ, [])
except TemplateError:
    print("refused")
"""


def test_a_rank_that_cannot_be_forked_is_an_error_and_no_wait(tmp_path):
    """As where the pod may run no more processes."""
    (tmp_path / "cannot_fork.py").write_text(CANNOT_FORK)
    environ = {**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", FORK], env=environ, capture_output=True, text=True, timeout=120)
    assert (done.stdout, "too many processes" in done.stderr) == ("refused\n", True), done.stderr


BEGINS_LATE = """
import os, signal, sys, time
from ddpjob_ranks.launch import launcher
from ddpjob_ranks.launch.template import Template
with launcher.signals_blocked() as mask:
    os.kill(os.getpid(), int(sys.argv[1]))
    template = Template(["imports_slowly"], os.environ, launcher.dies_with_this_process(mask), "")
    print(os.waitpid(template.fork(["ends.py"], os.environ, []), 0)[1], sorted(signal.sigpending() - {signal.SIGCHLD}))
"""


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_a_signal_that_is_for_the_ranks_waits_until_they_are_there(tmp_path, sent):
    """While the process that they are forked from imports torch, which takes several looks at the signals."""
    (tmp_path / "imports_slowly.py").write_text("import time\ntime.sleep(1)")
    (tmp_path / "ends.py").touch()
    environ = {**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", BEGINS_LATE, str(int(sent))]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"0 [{sent!r}]\n", done.stdout + done.stderr


ADOPTED_BY_ANOTHER = """
import os
from ddpjob_ranks.launch import template
template._prctl(template.PR_SET_CHILD_SUBREAPER, 1)
if os.fork() == 0:
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    template._become_child_of(2**22, parent)
os.wait()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_rank_whose_launcher_has_ended_before_it_could_adopt_it_ends():
    """Under another reaper of orphans than process 1, such as that of a login session or of Slurm."""
    command = [sys.executable, "-c", ADOPTED_BY_ANOTHER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "137\n", done.stderr


class Interrupted:
    """A store in which another process looks for the newest generation after each key that one writes."""

    def __init__(self, store: HashStore) -> None:
        self.store, self.found = store, []

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


class SharedStore:
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
        store, joined, is_fenced = HashStore(), [], False
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
    worker = Worker(
        launcher="test", rank=2, world_size=4, local_rank=0, local_world_size=2, master_addr="", master_port=1
    )
    assert Follower(worker, 2, memory, joined).is_left_behind(1) == left_behind


def test_what_follows_the_ranks_goes_on_while_no_store_responds(memory, monkeypatch):
    """Ranks that are connected to each other train on, and later failures of other nodes are to be noticed."""
    results = iter([PeersMissingError("rank 0 does not respond"), dist.DistNetworkError("reset"), (HashStore(), 3)])

    def open_store(*_: object, **__: object) -> object:
        if isinstance(result := next(results), Exception):
            raise result
        return result

    monkeypatch.setattr(follow.rendezvous, "open_store_of_attempt", open_store)
    monkeypatch.setattr(generation, "wait_for_next", lambda *_: None)
    worker = Worker(
        launcher="test", rank=1, world_size=2, local_rank=0, local_world_size=1, master_addr="", master_port=1
    )
    follower = Follower(worker, 2, memory)
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
    worker = Worker(
        launcher="test", rank=1, world_size=2, local_rank=0, local_world_size=1, master_addr="", master_port=1
    )
    monkeypatch.setenv(contract.DDPJOB_REPLACEMENT_SECONDS, "300")
    monkeypatch.setattr(generation, "_current", [mine])
    joined = []
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
    monkeypatch.setattr(distributed.preflight, "check", check)
    distributed._meet(worker, {}, torch.device("cpu"))
    assert joined == [0, found]


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
