"""Running ranks answer who asks from outside, and no one else's ranks do."""

import json
import subprocess
import sys
import uuid

import pytest

#: A rank whose main thread waits without the interpreter's lock, as in a collective.
RANK = """
import os, sys
from ddpjob_ranks import inspection
from ddpjob_ranks.watch.timeline import Phase, Timeline

def waits():
    sys.stdin.read()

timeline = Timeline()
timeline.begin_training(step=0)
timeline.enter(Phase.BACKWARD)
timeline.step_done(6, num_samples=64)
timeline.step_done(7, num_samples=64)
timeline.flush()
inspection.serve(int(sys.argv[1]), timeline, os.environ)
if os.fork() == 0:
    os._exit(0)
os.wait()
print("ready", flush=True)
waits()
"""


@pytest.fixture
def job() -> dict[str, str]:
    """The environment of a job's pod."""
    return {"PYTHONPATH": ":".join(sys.path), "DDPJOB_UID": str(uuid.uuid4()), "DDPJOB_ATTEMPT": "2"}


def asked(request: str, environ: dict[str, str]) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "ddpjob_ranks.inspection", request]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_rank_answers_with_its_stacks_and_its_place(job: dict[str, str]) -> None:
    pipe = subprocess.PIPE
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank)], env=job, stdin=pipe, stdout=pipe) for rank in (10, 2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
        dumps = asked("stacks", job)
        assert [dump["rank"] for dump in dumps] == [2, 10]
        assert "in waits" in str(dumps[0]["answer"])
        assert "thread inspection" not in str(dumps[0]["answer"])
        state = json.loads(str(asked("state", job)[1]["answer"]))
        assert (state["rank"], state["step"], state["phase"], state["num_samples"]) == (10, 7, "backward", 64)
        assert state["memory_bytes"] > 0
        assert asked("stacks", {**job, "DDPJOB_UID": "another"}) == []
        assert asked("stacks", {**job, "DDPJOB_ATTEMPT": "1"}) == []
    finally:
        for rank in ranks:
            rank.communicate()
