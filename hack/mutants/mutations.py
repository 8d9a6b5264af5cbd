"""Which mutants a file has, the list that they are kept in, and how a mutant becomes a change of a file.

A mutant is kept as the complete lines that it changes, before and after, and not as a line's number. So a list remains
valid while lines move, and each of its rows reads as a diff. Docstrings, names, types and calls have no mutants.
"""

import ast
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

_OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of a file."""

    file: str
    """Path in the repository."""
    old: str
    """The complete lines that change."""
    new: str
    nth: int = 0
    """Which occurrence of these lines in the file, from 0."""
    accepted: str = ""
    """Why no unit test notices the change, such as a test of real processes that does. Such a mutant is not run."""

    def applied(self, source: str) -> str | None:
        """The file with this change, or None if the file does not contain these lines any more."""
        if not (place := self.lines(source)):
            return None
        lines = source.split("\n")
        return "\n".join([*lines[: place.start - 1], *self.new.split("\n"), *lines[place.stop - 1 :]])

    def lines(self, source: str) -> range:
        """The numbers, from 1, of the lines that change. Empty if the file does not contain them any more."""
        lines, old = source.split("\n"), self.old.split("\n")
        found = [first for first in range(len(lines)) if lines[first : first + len(old)] == old]
        return range(found[self.nth] + 1, found[self.nth] + 1 + len(old)) if self.nth < len(found) else range(0)


def read_list(path: Path) -> list[Mutant]:
    """The mutants of a list, a JSON object a line."""
    return [Mutant(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def as_row(mutant: Mutant) -> str:
    """The line of a mutant in a list."""
    fields = dataclasses.asdict(mutant)
    return json.dumps({name: value for name, value in fields.items() if value or name == "new"}, ensure_ascii=False)


def mutants_of(file: str, source: str) -> Iterator[tuple[Mutant, range]]:
    """All mutants of a file, each with the numbers of the lines that its expression is on."""
    for expression in ast.walk(ast.parse(source)):
        if (change := _change(expression, source)) is None:
            continue
        node, text = change
        assert node.end_lineno is not None
        if mutant := _mutant(file, source, node, text):
            yield mutant, range(node.lineno, node.end_lineno + 1)


def _change(node: ast.AST, source: str) -> tuple[ast.expr, str] | None:
    """The expression that a mutant replaces, and by what."""

    def text(part: ast.expr) -> str:
        return f"({ast.get_source_segment(source, part)})"

    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OPPOSITES:
            return node, f"{text(left)} {_OPPOSITES[type(operator)]} {text(right)}"
        case ast.BoolOp(op=operator, values=values):
            return node, "(" + (" or " if isinstance(operator, ast.And) else " and ").join(map(text, values)) + ")"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return node, text(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right) if not isinstance(
            left, ast.Constant
        ):
            return node, f"({text(left)} {'-' if isinstance(operator, ast.Add) else '+'} {text(right)})"
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return node, str(value + 1)
        case ast.IfExp(orelse=otherwise):
            return node, text(otherwise)
        case ast.If(test=condition):
            return condition, f"not {text(condition)}"
    return None


def _mutant(file: str, source: str, node: ast.expr, text: str) -> Mutant | None:
    """The mutant that replaces this expression. None if it is part of a string or if the result is no Python."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.split("\n")
    old = lines[node.lineno - 1 : node.end_lineno]
    # Columns count bytes. Before Python 3.12 those of a part of an f-string are not its place in the file.
    before, after = old[0].encode()[: node.col_offset], old[-1].encode()[node.end_col_offset :]
    new = (before + text.encode() + after).decode()
    number = sum(lines[first : first + len(old)] == old for first in range(node.lineno - 1))
    mutant = Mutant(file=file, old="\n".join(old), new=new, nth=number)
    try:
        original = ast.parse(f"({ast.get_source_segment(source, node)})", mode="eval").body
        ast.parse(mutant.applied(source) or "")
    except SyntaxError:
        return None
    return mutant if ast.dump(original) == ast.dump(node) else None
