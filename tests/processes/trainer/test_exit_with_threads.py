import threading
from concurrent.futures import ThreadPoolExecutor

from ddpjob_ranks import contract
from support.forked_ranks import started


def wait_for_ever() -> None:
    """As a thread of a recipe or a library may."""
    ThreadPoolExecutor(1).submit(threading.Event().wait)


def test_a_finished_training_ends_although_threads_still_run(tmp_path):
    with started(tmp_path, "epochs=1", ranks=1, first=wait_for_ever) as run:
        run.wait_for("total time ")
        assert run.exit_code() == contract.EXIT_SUCCESS
