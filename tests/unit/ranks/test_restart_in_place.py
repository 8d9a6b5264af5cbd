"""What a launcher decides of restarts in place, the memory that ranks leave to each other, and where a replaced pod begins."""

import os
import subprocess
import sys

import pytest
from torch._C._distributed_c10d import HashStore

from ddpjob_ranks import generation, slots
from ddpjob_ranks.launch.join import generation_to_join
from ddpjob_ranks.launch.supervisor import MODULES, is_stuck


@pytest.mark.parametrize(
    ("reached", "stuck"),
    [([], False), ([7], False), ([7, 7], False), ([7, 7, 7], True), ([7, 7, 8], False), ([7, 8, 8], False)],
)
def test_two_restarts_without_a_further_step_are_the_last(reached, stuck):
    assert is_stuck(reached) == stuck


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
template = Template(["numpy.random"], os.environ, lambda: None)
for _ in range(2):
    os.waitpid(template.fork([sys.argv[1]], os.environ, []), 0)
"""


def test_forked_ranks_draw_different_numbers(tmp_path):
    """As processes do that import NumPy themselves."""
    script = tmp_path / "script.py"
    script.write_text("import random, numpy\nprint(random.random(), numpy.random.rand())")
    done = subprocess.run([sys.executable, "-c", FORKS, script], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 4, done.stdout + done.stderr


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
            store.add(f"{number}/ddpjob/preflight/3/number", 1)
    assert generation_to_join(store, range(2, 4)) == joined


def test_the_pods_that_a_pod_replaces_are_kept_from_joining():
    store = HashStore()
    generation.replace(store, [4, 5], 2)
    assert [generation.is_replaced(store, 5, number) for number in range(3)] == [True, True, False]
    assert not generation.is_replaced(store, 3, 0)
