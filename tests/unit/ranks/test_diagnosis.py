"""Which rank is late, from what the ranks report about themselves."""

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch.diagnosis import RankStatus, diagnose
from ddpjob_ranks.watch.timeline import Phase

LIMIT = (
    "the limit in this phase is 300 s: if the ranks were working, raise firstStepTimeoutSeconds (until the first step is"
    " done) or stepTimeoutSeconds"
)


NOW = 1_800_000_000.0


def status(rank: int, phase: Phase = Phase.BACKWARD, **changes) -> RankStatus:
    """A rank without progress for too long, in the step after 41."""
    usual = {"host": f"host-{rank}", "step": 41, "idle_seconds": 301.0, "limit_seconds": 300.0, "num_collectives": 90}
    usual["reported_at_unix_seconds"] = NOW
    return RankStatus(rank=rank, phase=phase, **{**usual, **changes})


def diagnosis_of(*answers: RankStatus, silent: tuple[RankStatus, ...] = ()) -> str | None:
    by_rank = {answer.rank: answer for answer in answers}
    return diagnose(by_rank, {**by_rank, **{lost.rank: lost for lost in silent}})


def test_the_rank_behind_is_late():
    found = diagnosis_of(status(0), status(1), status(2, Phase.DATA, num_collectives=89), status(3))
    assert found == (
        "rank 2 (host host-2) is late: in data after 41 steps; ranks 0, 1, 3 wait in backward or all-reduce after 41 steps"
    )


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # In one phase, the rank with fewer collectives is late.
        ([status(0, num_collectives=91), status(1)], "rank 1 (host host-1) is late: "),
        (
            [
                status(0, Phase.EVALUATE, num_control_collectives=44),
                status(1, Phase.EVALUATE, num_control_collectives=43),
            ],
            "rank 1 (host host-1) is late: in evaluate after 41 steps",
        ),
        # A rank that skipped a collective has agreed more often.
        (
            [status(0, num_control_collectives=43), status(1, step=42, num_collectives=89, num_control_collectives=44)],
            "rank 1 (host host-1) skipped a collective: ",
        ),
        # A rank with a collective of its own is late, and not all others are ahead.
        (
            [status(0, Phase.LOG, num_collectives=91), status(1), status(2)],
            "rank 0 (host host-0) is late: in log after 41 steps",
        ),
        # A late host is named with its phase, although its GPU waits for it.
        (
            [status(0, num_started_by_gpu=90), status(1, Phase.DATA, num_started_by_gpu=89)],
            "rank 1 (host host-1) is late: in data after 41 steps; ",
        ),
    ],
)
def test_the_numbers_of_collectives_show_which_rank_is_late(answers, expected):
    assert diagnosis_of(*answers).startswith(expected)


def test_where_all_hosts_wait_for_their_gpus_the_gpu_that_has_started_fewer_collectives_is_late():
    found = diagnosis_of(
        status(0, Phase.LOG, num_started_by_gpu=90),
        status(1, Phase.LOG, num_started_by_gpu=89),
        status(2, Phase.BACKWARD, num_started_by_gpu=90),
    )
    assert found == (
        "rank 1 (host host-1) is late: its GPU has started 89 collectives instead of 90;"
        " ranks 0, 1 wait in log after 41 steps; rank 2 waits in backward or all-reduce after 41 steps"
    )


def test_a_rank_ahead_with_fewer_collectives_skipped_one():
    found = diagnosis_of(status(0), status(1, Phase.AGREE, step=43, num_collectives=89), status(2))
    assert found.startswith("rank 1 (host host-1) skipped a collective: in the agreement between steps after 43 steps")
    assert found.endswith(
        "with 89 collectives started instead of 90; ranks 0, 2 wait in backward or all-reduce after 41 steps"
    )


@pytest.mark.parametrize("phase", [Phase.LOG, Phase.CHECKPOINT, Phase.EVALUATE])
@pytest.mark.parametrize("next_phase", [Phase.AGREE, Phase.DATA, Phase.BACKWARD])
def test_what_follows_a_step_comes_before_the_next_step(phase, next_phase):
    found = diagnosis_of(
        status(0, next_phase, num_collectives=91), status(1, phase), status(2, next_phase, num_collectives=91)
    )
    assert found.startswith(f"rank 1 (host host-1) is late: in {phase} after 41 steps")


def test_of_many_ranks_some_are_named_and_the_rest_counted():
    found = diagnosis_of(*map(status, range(50)), silent=tuple(map(status, range(50, 256))))
    assert found == (
        "ranks 50, 51, 52, 53 and 202 more (host host-50, host-51, host-52, host-53 and 202 more) do not respond (stopped,"
        " blocked or gone), last seen in backward or all-reduce after 41 steps;"
        " ranks 0, 1, 2, 3 and 46 more wait in backward or all-reduce after 41 steps"
    )


@pytest.mark.parametrize("num_silent", [0, 1, 128, 255])
def test_a_diagnosis_fits_into_the_message_with_its_culprit(num_silent):
    host = "a-long-training-name-worker-node-of-some-pool"
    ranks = [status(rank, list(Phase)[rank % 14], step=10**6 + rank, host=f"{host}-{rank:03}") for rank in range(256)]
    found = diagnosis_of(*ranks[num_silent:], silent=tuple(ranks[:num_silent]))
    assert len(f"rank 255\n{found}") <= contract.TERMINATION_MESSAGE_MAX_BYTES


def test_a_rank_that_does_not_respond_is_named_wherever_it_was_last():
    lost = status(1, step=43, idle_seconds=0.0, reported_at_unix_seconds=NOW - 300)
    found = diagnosis_of(status(0), silent=(lost,))
    assert found == (
        "rank 1 (host host-1) does not respond (stopped, blocked or gone), last seen in backward or all-reduce after 43 steps;"
        " rank 0 waits in backward or all-reduce after 41 steps"
    )


def test_the_limit_of_the_first_step_does_not_apply_to_a_silent_rank_that_others_have_taken_steps_with():
    stopped = status(1, step=0, idle_seconds=0.0, limit_seconds=3600.0, reported_at_unix_seconds=NOW - 300)
    assert diagnosis_of(status(0), silent=(stopped,)) is not None


@pytest.mark.parametrize(
    ("idle_seconds", "reported_seconds_ago", "overdue"),
    [
        (100, 200, True),
        (100, 199, False),
        (0, 5, False),
        (299, -1, False),  # clocks differ by a little
        (0, -3600, True),  # clocks that cannot be compared: it has not answered, which is all that is known
    ],
)
def test_a_rank_that_does_not_respond_is_hung_once_its_own_limit_has_passed(
    idle_seconds, reported_seconds_ago, overdue
):
    busy = status(1, idle_seconds=idle_seconds, reported_at_unix_seconds=NOW - reported_seconds_ago)
    found = diagnosis_of(status(0), status(2), silent=(busy,))
    assert (found is not None) == overdue


def test_a_rank_that_left_after_its_last_step_is_not_waited_for():
    found = diagnosis_of(status(0), status(1, Phase.DATA), silent=(status(2, Phase.END),))
    assert found.startswith("rank 1 (host host-1) is late: ")


SAME_PHASE = (
    "no rank is late: all wait in backward or all-reduce after 41 steps, with 90 collectives started; check their"
    f" stacks in the logs, and the network between host-0, host-1; {LIMIT}"
)
CONNECTING = (
    "no rank is late: all wait in connect after 0 steps; all of them reach rank 0, but they do not reach each other:"
    " check network policies and firewalls between host-0, host-1, and GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([status(0), status(1)], SAME_PHASE),
        ([status(0, Phase.CONNECT, step=0), status(1, Phase.CONNECT, step=0)], CONNECTING),
        ([status(0, Phase.DATA)], f"rank 0 (host host-0) makes no progress: in data after 41 steps for 301 s; {LIMIT}"),
        ([status(0, Phase.CHECKPOINT, limit_seconds=900.0), status(1)], None),
        ([status(0, Phase.EVALUATE, limit_seconds=900.0), status(1)], None),
    ],
    ids=["same phase", "connecting", "one rank", "within the limit", "within the limit of an evaluation"],
)
def test_where_no_rank_is_behind_the_network_or_the_limit_is_named(answers, expected):
    assert diagnosis_of(*answers) == expected


@pytest.mark.parametrize(("first", "other", "longest"), [(600, 300, 900), (3600, 300, 3600), (1, 2, 6)])
def test_collectives_outlast_every_wait_that_is_allowed(first, other, longest):
    limits = Limits(first_step_seconds=first, step_seconds=other)
    assert limits.longest_seconds == longest
    assert all(limits.of(phase, past_first_step=False) <= longest for phase in Phase)
    assert limits.collectives.total_seconds() > longest


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        ({"step": 42}, True),  # between two steps
        ({"step": 41, "num_collectives": 91}, True),  # in the step that was left, for its gradients
        ({"step": 41, "num_collectives": 90}, False),  # it may leave the same step
        ({"step": 40, "num_collectives": 91}, False),
        ({"step": 42, "phase": Phase.LEAVE}, False),
    ],
)
def test_a_rank_that_goes_on_waits_for_one_that_has_left_the_loop(other, waits):
    left = status(0, Phase.LEAVE, step=42)
    assert status(1, **{"phase": Phase.STEP, **other}).waits_for(left, is_early=True) is waits
    assert not status(1, **{"phase": Phase.STEP, **other}).waits_for(left, is_early=False)


def test_a_rank_that_ends_before_the_loop_is_waited_for_by_those_that_prepare_it():
    left = status(0, Phase.LEAVE, step=0, num_calls=1)
    assert status(1, Phase.SETUP, step=0, num_calls=2).waits_for(left, is_early=False)
    assert not status(1, Phase.SETUP, step=0, num_calls=1).waits_for(left, is_early=False)
