from ddpjob_measure.outcome import Outcome, training_seconds_by_step

SPANS: list[dict[str, float | str]] = [
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
    assert training_seconds_by_step(SPANS) == {10: 10.0, 20: 19.0}


def test_a_seed_is_a_row_with_the_time_to_each_target():
    assert outcome(0, 0.85, 0.9).row(0.85, 0.95) == {
        "seed": 0,
        "accuracy %": 90.0,
        "training s": 20.0,
        "whole s": 60.0,
        "s to 85 %": 10.0,
        "s to 95 %": "not reached",
        "weights": "000000000000",
    }


def test_a_percentage_is_reached_by_the_share_that_it_is():
    assert [outcome(0, count / 10_000).seconds_to(count / 100 / 100) for count in range(5000, 10_000)] == 5000 * [10.0]
