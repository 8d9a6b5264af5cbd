import re

from ddpjob_measure import overhead
from ddpjob_measure.__main__ import main


def test_the_share_follows_from_its_parts(capsys, monkeypatch):
    monkeypatch.setattr(overhead, "NUM_STEPS", 20)
    monkeypatch.setattr(overhead, "NUM_BACKWARD_PASSES", 1)
    assert main(["overhead", "--step-ms", "20"]) == 0
    told = capsys.readouterr().out
    marks, hook, total = (float(number) for number in re.findall(r"([\d.]+) us", told))
    assert abs(marks + hook / 10 - total) <= 0.11, told
    share = re.search(r"([\d.]+) % of a step of 20 ms", told)
    assert share
    assert abs(float(share[1]) - total / 20_000 * 100) <= 0.011, told
