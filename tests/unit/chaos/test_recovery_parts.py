"""The time to recover, from what was seen of a job and what its ranks left behind."""

from chaos.recovery import Marks, recovery, steps_lost
from chaos.story import PodLife, Story

FAULT_AT = 100.0


def story(*, stopped: float | None, created: float) -> Story:
    """A job whose status named attempt 2 a second after the fault."""
    return Story(
        attempts={1: 90.0, 2: 101.0},
        pods={
            (1, 0): PodLife(created=90.0, ended=stopped),
            (1, 1): PodLife(created=90.0, gone=100.5),
            (2, 0): PodLife(created=created, scheduled=created + 0.25),
            (2, 1): PodLife(created=created + 0.5, scheduled=created + 0.5),
        },
    )


MARKS = {
    (1, 0): Marks.parse("python 91.0\nrendezvous 93.0\nmet 94.0\nbegin 0 95.0\nstep 1 96.0\nstep 31 99.0\n"),
    (2, 0): Marks.parse("python 104.0\nrendezvous 106.0\nmet 108.0\nbegin 23 109.0\nstep 24 110.0\nstep 25 111.0\n"),
    (2, 1): Marks.parse("python 105.0\nrendezvous 107.0\nmet 108.0\nbegin 23 109.0\nstep 24 110.5\nstep 25 111"),
}


def test_each_part_ends_with_the_last_rank() -> None:
    parts = recovery(story(stopped=102.0, created=103.0), MARKS, fault_at=FAULT_AT, resumed_at=None)
    assert parts == {
        "detect": 1.0,
        "stop": 1.0,
        "create": 1.5,
        "schedule": 0.0,
        "start": 1.5,
        "load": 2.0,
        "rendezvous": 1.0,
        "first step": 2.5,
        "total": 10.5,
    }


def test_a_pod_that_never_stops_is_not_waited_for() -> None:
    parts = recovery(story(stopped=None, created=101.5), MARKS, fault_at=FAULT_AT, resumed_at=None)
    assert (parts["detect"], parts["stop"], parts["create"]) == (1.0, 0.0, 1.0)


def test_the_rest_between_suspension_and_resumption_does_not_count() -> None:
    parts = recovery(story(stopped=101.0, created=103.0), MARKS, fault_at=FAULT_AT, resumed_at=102.5)
    assert parts["total"] == 9.0


def test_a_job_that_was_not_restarted_has_no_recovery() -> None:
    assert recovery(Story(attempts={1: 90.0}), MARKS, fault_at=FAULT_AT, resumed_at=None) is None


def test_steps_done_beyond_the_checkpoint_are_lost() -> None:
    assert steps_lost(MARKS) == 31 - 23


def test_an_attempt_that_did_no_step_gives_none_to_lose() -> None:
    waiting = {**MARKS, (3, 0): Marks.parse("python 120.0\n"), (4, 0): Marks.parse("python 130.0\nbegin 25 131.0\n")}
    assert steps_lost(waiting) == 31 - 23
