"""The memory that ranks leave to each other: slots that keep the content of the last whole step."""

import os
import subprocess
import sys

from ddpjob_ranks import slots


def test_slots_keep_the_content_of_their_step_and_take_only_the_memory_that_is_written(memory):
    assert [slots.step_of(memory, slot) for slot in range(2)] == [slots.NO_STEP] * 2
    slots.write(memory, 5, lambda file: file.write(b"five, a long text"), slot=1)
    slots.write(memory, 6, lambda file: file.write(b"six"), slot=0)
    slots.write(memory, 7, lambda file: file.write(b"seven"), slot=1)
    assert [(slots.step_of(memory, slot), bytes(slots.read(memory, slot))) for slot in range(2)] == [
        (6, b"six"),
        (7, b"seven"),
    ]
    assert os.fstat(memory).st_blocks * 512 < 2**16
    slots.empty(memory)
    assert slots.step_of(memory, 1) == slots.NO_STEP


def test_bytes_are_written_whole_though_one_call_writes_a_part(memory, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: pwrite(file, content[:16], at))  # a header is as long
    slots.write(memory, 4, b"longer than the text that replaces it", slot=1)
    slots.write(memory, 5, b"five, in several calls", slot=1)
    assert (slots.step_of(memory, 1), bytes(slots.read(memory, 1))) == (5, b"five, in several calls")


WRITER = """
import os, sys
from ddpjob_ranks import slots
slots.write(int(sys.argv[1]), 9, lambda file: (file.write(b"half"), file.flush(), os._exit(9)))
"""


def test_a_slot_whose_writer_was_killed_is_empty(memory):
    slots.write(memory, 8, lambda file: file.write(b"eight"))
    subprocess.run([sys.executable, "-c", WRITER, str(memory)], pass_fds=[memory], check=False)
    assert slots.step_of(memory) == slots.NO_STEP
