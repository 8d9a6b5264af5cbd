"""Lines of logs, and their times."""

from itertools import pairwise

from ddpjob.client.jobs import Pod
from ddpjob.client.logs import LogLine, order, read_line

POD = Pod(
    name="j-1-0",
    attempt=1,
    rank=0,
    node="n",
    state="Running",
    restarts=0,
    exit_code=None,
    message="",
    started=True,
    finished=False,
    body={},
)


def line(time: str, text: str = "") -> LogLine:
    return read_line(POD, f"{time} {text}")


def test_a_line_has_its_time_and_no_control_characters() -> None:
    read = line("2026-01-02T03:04:05.1Z", "\x1b[31mred\x1b[0m\rloss 1")
    assert (read.time, read.text) == ("2026-01-02T03:04:05.1Z", "loss 1")


def test_a_line_without_a_time_is_kept() -> None:
    assert read_line(POD, "no time here").text == "no time here"


def test_times_are_ordered_by_all_digits_and_by_zone() -> None:
    times = ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05.12Z", "2026-01-02T05:04:06+02:00"]
    assert [order(earlier) < order(later) for earlier, later in pairwise(times)] == [True] * 3
