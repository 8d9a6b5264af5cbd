"""Which mutants a file has, and that a list keeps them while lines move."""

from pathlib import Path

import pytest

from mutants.mutations import as_row, mutants_of, read_list


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("x = a < b", ["x = (a) <= (b)"]),
        ("x = a and not b", ["x = ((a) or (not b))", "x = a and (b)"]),
        ("x = é - b + f(2)", ["x = ((é - b) - (f(2)))", "x = ((é) + (b)) + f(2)", "x = é - b + f(3)"]),
        ("x = a if b else c", ["x = (c)"]),
        ("if a: pass", ["if not (a): pass"]),
        ('x = "1 < 2", True, 1 < a < 3', ['x = "1 < 2", True, 2 < a < 3', 'x = "1 < 2", True, 1 < a < 4']),
    ],
)
def test_each_mutant_changes_one_expression(line: str, changed: list[str]) -> None:
    assert sorted(mutant.new for mutant, _ in mutants_of("x.py", line)) == sorted(changed)


def test_a_mutant_in_a_list_finds_its_lines_again(tmp_path: Path) -> None:
    source = "a = 1\nif x:\n    a = 1\na = (\n    b\n    == c\n)\na = 1"
    mutants = [mutant for mutant, _ in mutants_of("x.py", source)]
    (tmp_path / "list").write_text("\n".join(map(as_row, mutants)))
    assert read_list(tmp_path / "list") == mutants
    changed = {mutant.applied("# moved\n" + source) for mutant in mutants}
    assert "# moved\na = 1\nif x:\n    a = 1\na = (\n    b\n    == c\n)\na = 2" in changed
    assert "# moved\na = 1\nif x:\n    a = 1\na = (\n    (b) != (c)\n)\na = 1" in changed
    assert len(changed) == 5
    assert {mutant.applied("a = 3") for mutant in mutants} == {None}
