import pytest

from ddpjob_measure.buckets import _on_the_way, _Step, covered, report
from support.figures import figures


@pytest.mark.parametrize(
    ("stretches", "length"),
    [([], 0), ([(0, 1)], 1), ([(0, 1), (2, 3)], 2), ([(0, 2), (1, 3)], 3), ([(1, 2), (0, 5)], 5), ([(2, 1)], 0)],
)
def test_overlapping_stretches_count_once(stretches, length):
    assert covered(stretches) == length


def test_transfers_before_the_last_bucket_is_ready_are_hidden():
    step = _Step(begin=10.0, ready=[11.0, 13.0], done={0: 12.0, 1: 14.5})
    assert _on_the_way(step) == (2.5, 1.0)  # 11 to 12 is hidden, 13 to 14.5 is not


def test_the_report_shows_number_size_and_order():
    plan = [{"bytes": 2**20, "parameters": ["fc.bias", "fc.weight"]}, {"bytes": 2**19, "parameters": ["conv1.weight"]}]
    extra = {"plan": plan, "on_the_way_seconds": 0.2, "hidden_seconds": 0.05, "alone_seconds": 0.1}

    text = report(figures(2, 8.0, extra=extra))

    assert "2 buckets, 1.5 MiB of gradients" in text
    assert "| 0 | 1 | 2 | fc.bias | fc.weight |\n| 1 | 0.5 | 1 | conv1.weight | conv1.weight |" in text
    assert "200.0 ms, of which 50.0 ms (25 %) are hidden" in text
