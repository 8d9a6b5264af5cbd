"""The table of README.md names tests that exist, for every pain, and leaves out none of this folder's."""

import ast
import functools
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
NUM_PAINS = 25
#: `| 7 | the pain (evidence) | what ddpjob does | tests |`
_ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
_ID = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> dict[int, tuple[str, str, str]]:
    """Pain, answer and tests, by number."""
    found = _ROW.findall((HERE / "README.md").read_text())
    assert len({number for number, *_ in found}) == len(found), "a pain stands in two rows"
    return {int(number): (pain, answer, tests) for number, pain, answer, tests in found}


@functools.cache
def functions(file: Path) -> frozenset[str]:
    """Names of a file's test functions."""
    tree = ast.parse(file.read_text())
    defined = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in defined if name.startswith("test_"))


def test_every_pain_has_one_row() -> None:
    assert list(rows()) == list(range(1, NUM_PAINS + 1))


@pytest.mark.parametrize("number", range(1, NUM_PAINS + 1))
def test_a_row_has_evidence_and_tests_that_exist(number) -> None:
    pain, answer, tests = rows()[number]
    named = _ID.findall(tests)

    assert re.search(r"[\w-]#\d+", pain), "no issue of another project"
    assert answer.strip()
    assert "`" not in _ID.sub("", tests), "something in the column is no test id"
    missing = [f"{file}::{name}" for file, name in named if name not in functions(TESTS / file)]
    assert not missing
    assert [name for file, name in named if file.startswith("pains/") and name.startswith(f"test_pain_{number:02}_")]


def test_every_test_of_a_pain_stands_in_its_row() -> None:
    own = {
        (f"pains/{file.name}", name)
        for file in HERE.glob("test_*.py")
        for name in functions(file)
        if name.startswith("test_pain_")
    }
    listed = {
        (file, name)
        for number, (_, _, tests) in rows().items()
        for file, name in _ID.findall(tests)
        if name.startswith(f"test_pain_{number:02}_")
    }
    assert own == listed
