"""Writes the signatures of the public Python interface to docs/reference/interface.md, as `make generate` does.

A change of the list that is no addition needs a new major version.
"""

import functools
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[1] / "docs/reference/interface.md"
MODULES = [
    name
    for name in ("ddpjob.client", "ddpjob.launch", "ddpjob.recipe", "ddpjob.session")
    if importlib.util.find_spec(name)
]
LISTING = re.compile(r"(```text\n).*?(```)", re.DOTALL)


def listing() -> str:
    """A line for each public class, method, attribute, function and constant."""
    lines = [line for name in MODULES for line in _of_module(importlib.import_module(name))]
    return "".join(f"{line}\n" for line in lines)


def _of_module(module: Any) -> Iterator[str]:
    for name in sorted(module.__all__):
        public = getattr(module, name)
        where = f"{module.__name__}.{name}"
        if inspect.isclass(public):
            yield f"{where}{_signature(public)}"
            yield from sorted(set(_members(public, where)))
        else:
            yield f"{where}{_signature(public) if callable(public) else ''}"


def _members(public: type, where: str) -> Iterator[str]:
    """Public methods and attributes, those of base classes of this project included."""
    for owner in public.__mro__:
        if owner.__module__.startswith("ddpjob"):
            yield from (f"{where}.{name}" for name in inspect.get_annotations(owner) if not name.startswith("_"))
            for name, member in vars(owner).items():
                function = inspect.unwrap(getattr(member, "__func__", member))
                if not name.startswith("_"):
                    yield f"{where}.{name}{_signature(function) if inspect.isfunction(function) else ''}"


def _signature(public: Any) -> str:
    """Its parameters, with types by their bare names; those of a pydantic model are its attributes."""
    if hasattr(public, "model_fields"):
        return ""
    is_late = public.__module__.startswith("ddpjob.client")  # its types are imported when they are used
    try:
        text = str(
            inspect.signature(public, locals=_late_types(), eval_str=True) if is_late else inspect.signature(public)
        )
    except ValueError:  # a class of exceptions
        return ""
    text = re.sub(r"<function .*? at 0x\w+>", "<function>", text)
    text = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(\w+)", r"\1", text)
    return text.replace("ResolvedConfig", "Config")  # the name that it is exported under


@functools.cache
def _late_types() -> dict[str, Any]:
    modules = (
        importlib.import_module(f"ddpjob.client.{name}") for name in ("files", "functions", "inspection", "logs")
    )
    return {name: value for module in modules for name, value in vars(module).items() if not name.startswith("_")}


if __name__ == "__main__":
    DOCUMENT.write_text(LISTING.sub(lambda match: f"{match[1]}{listing()}{match[2]}", DOCUMENT.read_text()))
