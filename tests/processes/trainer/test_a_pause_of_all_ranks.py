"""All ranks are paused for longer than a step may take, as when a machine is suspended, in the middle of a slow step."""

import os
import signal
import time

from ddpjob_ranks import contract
from ddpjob_trainer.data import Feed
from support.forked_ranks import started

STEP_TIMEOUT_SECONDS = 12
PAUSE_SECONDS = 15.0
SLOW_STEP = 6
BATCH = Feed.batch


def slow_batch(feed: Feed, step: int) -> object:
    """`Feed.batch`, where rank 1 takes a second for one batch; a pause makes that second no shorter."""
    if (feed.rank, step) == (1, SLOW_STEP) and os.environ.pop("SLOW", None):
        print("the slow batch has begun", flush=True)
        for _ in range(100):
            time.sleep(0.01)
    return BATCH(feed, step)


def arrange() -> None:
    Feed.batch = slow_batch  # type: ignore[method-assign, assignment]  # that is the slow step


def test_a_pause_of_all_ranks_does_not_end_a_healthy_job(tmp_path):
    keys = (f"stepTimeoutSeconds={STEP_TIMEOUT_SECONDS}", "epochs=1")
    with started(tmp_path, *keys, ranks=2, environ={"SLOW": "1"}, first=arrange) as run:
        run.wait_for("the slow batch has begun", rank=1)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in run.processes:
                assert process.pid is not None
                os.kill(process.pid, number)
            if number == signal.SIGSTOP:
                time.sleep(PAUSE_SECONDS)  # the pause itself
        assert run.wait() == [contract.EXIT_SUCCESS, contract.EXIT_SUCCESS], run.text()
