import pytest

from ddpjob_operator.core.progress import latest_progress

GOOD = 'ddpjob-progress {"step": 12, "totalSteps": 40, "epoch": 1, "loss": 0.123456, "etaSeconds": 200.4}'


def test_the_last_line_counts() -> None:
    progress = latest_progress(f'ddpjob-progress {{"step": 1}}\nnoise\n{GOOD}\nmore noise\n')
    assert (progress.step, progress.total_steps, progress.loss, progress.eta) == (12, 40, 0.1235, "3m20s")


@pytest.mark.parametrize("prefix", ["[rank0]: ", "[default0]:", "[default0]: "])
def test_a_launchers_prefix_is_allowed(prefix) -> None:
    assert latest_progress(prefix + GOOD) is not None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "failed to try resolving symlinks in path /var/log/pods: no such file or directory",
        "ddpjob-progress",
        "ddpjob-progress {",
        'ddpjob-progress {"step": 12',
        "ddpjob-progress []",
        "ddpjob-progress {}",
        'ddpjob-progress {"step": "12"}',
        'ddpjob-progress {"step": -1}',
        'ddpjob-progress {"step": 1e400}',
        'ddpjob-progress {"step": 99999999999999999999}',
        'ddpjob-progress {"step": 1, "loss": NaN}',
        'ddpjob-progress {"step": 1, "loss": 1.7976931348623157e308}',
        'ddpjob-progress {"step": 1, "phase": "\\u001b[2J"}',
        'ddpjob-progress {"step": 1, "x": "' + "y" * 2000 + '"}',
        "ddpjob-progress " + '{"step":' * 900 + "1" + "}" * 900,
    ],
)
def test_a_line_that_is_not_of_the_contract_is_ignored(line) -> None:
    assert latest_progress(line) is None


def test_the_line_before_a_cut_line_counts() -> None:
    progress = latest_progress(GOOD + '\nddpjob-progress {"step": 99, "lo')
    assert progress.step == 12


def test_a_line_behind_a_progress_bar_is_read() -> None:
    """A bar does not end in a newline, so the next line is appended to it."""
    assert latest_progress(' 50%|#####     | 5/10ddpjob-progress {"step": 5}\n').step == 5
