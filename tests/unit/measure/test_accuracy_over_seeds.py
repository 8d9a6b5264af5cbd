from ddpjob_measure import accuracy
from ddpjob_measure.accuracy import Outcome

SPANS = [
    {"span": "setup", "step": 0, "monotonic_seconds": 90.0, "seconds": 10.0},
    {"span": "first_step", "step": 1, "monotonic_seconds": 100.0, "seconds": 2.0},
    {"span": "steps", "step": 10, "monotonic_seconds": 102.0, "seconds": 8.0},
    {"span": "evaluate", "step": 10, "monotonic_seconds": 110.0, "seconds": 5.0},
    {"span": "steps", "step": 20, "monotonic_seconds": 115.0, "seconds": 9.0},
    {"span": "evaluate", "step": 20, "monotonic_seconds": 124.0, "seconds": 5.0},
]


def outcome(seed: int, *accuracies: float) -> Outcome:
    """One that evaluated every 10 steps, each of which took a second."""
    steps = range(10, 10 * len(accuracies) + 1, 10)
    return Outcome(
        seed=seed,
        accuracy_by_step=dict(zip(steps, accuracies, strict=True)),
        seconds_by_step={step: float(step) for step in steps},
        whole_seconds=60.0,
        weights_sha256=f"{seed:064x}",
    )


def test_training_time_leaves_out_evaluations_and_what_is_before_the_first_step():
    assert accuracy.training_seconds_by_step(SPANS) == {10: 10.0, 20: 19.0}


def test_each_seed_has_a_line_and_the_mean_a_spread():
    lines = accuracy.table([outcome(0, 0.5, 0.9), outcome(1, 0.5, 0.8)], None).splitlines()
    assert lines[2] == "| 0 | 90.00 | 20.00 | 60.00 | 000000000000 |"
    assert lines[4] == "| mean | 85.00 ± 7.07 | 20.00 ± 0.00 | 60.00 ± 0.00 |  |"


def test_the_time_to_a_target_is_shown_where_it_was_reached():
    lines = accuracy.table([outcome(0, 0.85, 0.9), outcome(1, 0.5, 0.9), outcome(2, 0.5, 0.8)], 85.0).splitlines()
    assert [line.split(" | ")[-1] for line in lines[2:]] == [
        "10.00 |",
        "20.00 |",
        "not reached |",
        "2 of 3 reached it |",
    ]


def test_the_curve_has_a_column_for_each_seed():
    lines = accuracy.curve([outcome(0, 0.5, 0.9), outcome(1, 0.25)]).splitlines()
    assert lines == [
        "| steps | seed 0 | seed 1 |",
        "| --- | --- | --- |",
        "| 10 | 50.00 | 25.00 |",
        "| 20 | 90.00 |  |",
    ]


def test_a_percentage_is_reached_by_the_share_that_it_is():
    assert [outcome(0, count / 10_000).seconds_to(count / 100 / 100) for count in range(5000, 10_000)] == 5000 * [10.0]
