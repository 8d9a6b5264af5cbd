"""`operator/` and `trainer/` are source roots, not packages: `operator` is the name of a module of the standard library."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_source_root_holds_no_module_at_its_top() -> None:
    """With `operator/__init__.py` Python would import that instead of the standard library's module, and not start."""
    assert [file for root in ("operator", "trainer") for file in (REPOSITORY / root).glob("*.py")] == []
