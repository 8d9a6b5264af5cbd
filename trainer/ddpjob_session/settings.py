"""Settings as text: the same on all ranks and in all attempts where the settings are the same."""

import re
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def text_of(value: object) -> str:
    """A text is itself. Addresses are left out, and sets are sorted, since both differ between processes."""
    text = str(value)
    is_certain = not ADDRESS.search(text) and "{" not in text  # a set may be anywhere
    return text if is_certain or isinstance(value, str) else _nested(value)


def _nested(value: object) -> str:
    kind = type(value)
    if kind in (set, frozenset) and value:
        return "{" + ", ".join(sorted(map(_nested, value))) + "}"  # type: ignore[call-overload] # a set
    if kind is dict:
        return "{" + ", ".join(f"{_nested(key)}: {_nested(item)}" for key, item in value.items()) + "}"  # type: ignore[attr-defined] # a dict
    if kind in (list, tuple):
        items = ", ".join(map(_nested, value))  # type: ignore[call-overload] # a list or a tuple
        return f"[{items}]" if kind is list else f"({items}{',' * (len(value) == 1)})"  # type: ignore[arg-type]
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, partial):
        return f"partial({_nested(value.func)}, {_nested(value.args)}, {_nested(value.keywords)})"
    return ADDRESS.sub("", repr(value))
