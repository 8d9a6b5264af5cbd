import threading
from concurrent.futures import ThreadPoolExecutor

from ddpjob_ranks import contract
from forked_ranks import started


def decode_for_ever() -> None:
    """As threads would that decode images for steps which do not come."""
    ThreadPoolExecutor(1).submit(threading.Event().wait)


def test_a_finished_training_ends_although_threads_still_run(tmp_path):
    with started(tmp_path, "epochs=1", ranks=1, first=decode_for_ever) as run:
        run.wait_for("total time ")
        assert run.exit_code() == contract.EXIT_SUCCESS
