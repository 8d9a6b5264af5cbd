"""Of a stack that only says that another rank was lost, the last line is shown."""

from ddpjob_cli.peer_stacks import MAX_LINES, PeerStacks

START = "Traceback (most recent call last):"
FRAME = '  File "train.py", line 9, in <module>'
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:19334"


def shown(*lines: str, rank: int = 0) -> list[str]:
    stacks = PeerStacks()
    return [text for line in lines for text in stacks.shown(rank, line)] + [text for _, text in stacks.rest()]


def test_the_stack_of_a_rank_that_failed_by_itself_is_shown() -> None:
    lines = ["step 4", START, FRAME, "ValueError: bad sample 17", "the end"]
    assert shown(*lines) == lines


def test_of_a_rank_that_lost_another_one_the_exception_is_shown() -> None:
    assert shown("step 4", START, FRAME, LOST, "the end") == ["step 4", f"{LOST} (stack: in the log)", "the end"]


def test_stacks_of_the_ranks_of_one_pod_may_be_mixed() -> None:
    lost, own = "[rank0]: ", "[rank1]: "
    lines = [lost + START, own + START, lost + FRAME, own + FRAME, own + "ValueError: x", lost + LOST]
    assert shown(*lines) == [own + START, own + FRAME, own + "ValueError: x", f"{lost}{LOST} (stack: in the log)"]


def test_stacks_of_two_pods_are_separate() -> None:
    stacks = PeerStacks()
    assert stacks.shown(0, START) == stacks.shown(1, START) == stacks.shown(0, FRAME) == []
    assert stacks.shown(1, "ValueError: x") == [START, "ValueError: x"]
    assert stacks.rest() == [(0, START), (0, FRAME)]
    assert stacks.rest() == []


def test_stacks_of_a_rank_that_is_asked_to_stop_are_left_out() -> None:
    asked, stacks = (
        "ddpjob stacks: SIGTERM received",
        ["thread MainThread", FRAME, "    train()", "thread watchdog", FRAME],
    )
    lines = ["step 4", asked, *stacks, asked, *stacks, "checkpoint of step 4", "thread pool: 3"]
    short = f"{asked} (stacks: in the log)"
    assert shown(*lines) == ["step 4", short, short, "checkpoint of step 4", "thread pool: 3"]


def test_a_fault_of_the_rank_itself_in_the_same_exception_is_shown() -> None:
    lines = [START, FRAME, "torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE"]
    assert shown(*lines) == lines


def test_what_is_no_stack_is_never_lost() -> None:
    lines = [START, START, FRAME, *([FRAME] * MAX_LINES), LOST]
    assert [line.removesuffix(" (stack: in the log)") for line in shown(*lines)] == lines


def test_a_stack_is_held_back_up_to_its_longest_length() -> None:
    stacks = PeerStacks()
    shown = [stacks.shown(0, line) for line in [START, *([FRAME] * MAX_LINES)]]
    assert [len(lines) for lines in shown] == [0] * MAX_LINES + [MAX_LINES + 1]
