"""Each feature in the trainer's README names a test that exists."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
README = REPOSITORY / "trainer/README.md"


def rows() -> list[list[str]]:
    section = README.read_text().partition("## What it does, and the test that shows it")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines][2:]


def test_there_is_a_table():
    assert len(rows()) >= 30


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_the_test_of_a_feature_exists(row):
    feature, _, shown_by = row
    paths = re.findall(r"`([\w/.-]+\.py)`", shown_by)
    if shown_by.startswith("none:"):
        assert not paths
        return
    assert paths, f"{feature} names no test and does not say why"
    for path in paths:
        assert (REPOSITORY / "tests" / path).is_file(), f"{feature}: tests/{path} is not there"
