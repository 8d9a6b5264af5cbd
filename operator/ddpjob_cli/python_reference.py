"""The generated part of the page about the Python client: what `ddpjob.client` exports, from its docstrings. Pure."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import ddpjob.client
from ddpjob.client import AsyncClient, Client, ClientError, Goal

#: A docstring's section of items, such as `Raises:`, each with the lines that continue it.
_SECTION: Final = re.compile(r"^(Args|Raises):\n((?:    .*\n?|\n)+)", re.MULTILINE)
_ITEM: Final = re.compile(r"^    (\w+): ((?:.*)(?:\n        .*)*)", re.MULTILINE)
_TITLES: Final = {"Args": "Arguments", "Raises": "Raises"}
_WIDTH: Final = 110


def client() -> str:
    """The methods of the client, the types that they give, and the errors that they raise."""
    exported = [getattr(ddpjob.client, name) for name in ddpjob.client.__all__]
    types = [item for item in exported if isinstance(item, type) and dataclasses.is_dataclass(item)]
    errors = [item for item in exported if isinstance(item, type) and issubclass(item, ClientError)]
    return "\n\n".join(
        [
            "## Client",
            _prose(Client),
            *_method("Client", Client.__init__),
            *(part for method in _methods(Client) for part in _method(f"client.{method.__name__}", method)),
            "## Types",
            *(_type(item) for item in types),
            "### Goal",
            f"{_prose(Goal)} Its values are {', '.join(f'`{goal}`' for goal in Goal)}.",
            "## Errors",
            "| error | when |\n| --- | --- |\n" + "\n".join(_row(item.__name__, _prose(item)) for item in errors),
        ]
    )


def _methods(of: type) -> Iterator[Any]:
    """The public methods in the order of the source."""
    return (value for name, value in vars(of).items() if inspect.isfunction(value) and not name.startswith("_"))


def _method(name: str, method: Any) -> Iterator[str]:
    """Heading, signature and text of a method; that of AsyncClient says more where the other one refers to it."""
    full = getattr(AsyncClient, method.__name__, method)
    text = inspect.getdoc(full if method.__name__ != "__init__" else method) or ""
    if method.__name__ != "__init__":
        yield f"### {method.__name__}"
    yield f"```python\n{_signature(name, method)}\n```"
    yield _SECTION.sub("", f"{text}\n").strip()
    for title, items in _SECTION.findall(f"{text}\n"):
        rows = [_row(item, re.sub(r"\s+", " ", meaning)) for item, meaning in _ITEM.findall(items)]
        yield "\n".join([f"| {_TITLES[title].lower()} | |", "| --- | --- |", *rows])


def _signature(name: str, method: Any) -> str:
    """A call with the arguments and types that the source names."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node.args.args = node.args.args[1:]  # self
    arguments = re.sub(r"(?<=[\w\])])=(?=\S)", " = ", ast.unparse(node.args))
    gives = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{name}({arguments}){gives}"
    if len(line) <= _WIDTH:
        return line
    parts = re.split(r", (?=[\w*]+(?:[:,]|$))", arguments)
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){gives}"


def _type(of: type) -> str:
    """A table of the fields and properties of a dataclass, with the docstrings that follow the fields."""
    (node,) = ast.parse(inspect.getsource(of)).body
    assert isinstance(node, ast.ClassDef)
    rows = []
    for member, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign):
            rows.append(_row(f"{ast.unparse(member.target)}: {ast.unparse(member.annotation)}", _text(after)))
        elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            called = "" if member.decorator_list else f"({', '.join(arg.arg for arg in member.args.args[1:])})"
            gives = ast.unparse(member.returns).strip("'") if member.returns else "None"
            rows.append(_row(f"{member.name}{called}: {gives}", ast.get_docstring(member) or ""))
    return "\n".join([f"### {of.__name__}", "", _prose(of), "", "| field | meaning |", "| --- | --- |", *rows])


def _text(node: ast.stmt | None) -> str:
    """The docstring that follows a field, empty if there is none."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def _prose(of: Any) -> str:
    return (inspect.getdoc(of) or "").strip()


def _row(name: str, meaning: str) -> str:
    escaped = name.replace("|", "\\|")
    return f"| `{escaped}` | {meaning.replace('|', chr(92) + '|')} |"
