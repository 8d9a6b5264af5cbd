"""A job that calls a Python function: its source in a ConfigMap, which every pod runs as a script.

Only source is sent, never pickled objects, so that the pods may run another release of Python and the manifest stays
readable. The price: a function must be complete in itself.
"""

import ast
import builtins
import inspect
import json
import keyword
import symtable
import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ddpjob.client.files import check_size
from ddpjob_operator.api import names
from ddpjob_operator.core.job_names import new_name

Function = Callable[..., object]

_FILE = "ddpjob_function.py"


def function_job(
    function: Function,
    *,
    name: str | None,
    spec: Mapping[str, Any],
    args: Mapping[str, Any],
    imports: Collection[str],
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The DDPJob that runs the function in every rank, and the file with its script.

    Raises:
        ValueError: the function cannot be sent; the text says why and what to do.
    """
    script = function_script(function, args=args, imports=imports)
    job = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name or new_name(getattr(function, "__name__", "job"))},
        "spec": {"command": [*_launcher(spec), _FILE], **spec},
    }
    return job, {_FILE: script.encode()}


def _launcher(spec: Mapping[str, Any]) -> list[str]:
    """What runs the script in each pod: torchrun where a pod has several ranks, which the operator's variables configure."""
    processes = spec.get("processesPerNode") or spec.get("gpusPerNode") or 1
    return ["torchrun"] if processes > 1 else ["python", "-u"]


def function_script(function: Function, *, args: Mapping[str, Any], imports: Collection[str]) -> str:
    """A script that calls the function with `args`.

    Raises:
        ValueError: the function cannot be sent.
    """
    title = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise ValueError(f"{title} is not a function that was defined with `def`; wrap what it does into one")
    if function.__closure__:
        outer = ", ".join(function.__code__.co_freevars)
        raise ValueError(f"{title} uses {outer} of the function around it; give them as arguments with args=")
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"{title} is a coroutine function; give a plain one that calls asyncio.run")
    _check_arguments(function, args)
    for line in imports:
        _check_import(line)
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise ValueError(
            f"the source of {title} cannot be read ({error}); define it in a file or a notebook cell, not in a prompt"
        ) from None
    try:
        parameters = json.dumps(dict(args), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"args of {title} are not JSON ({error}); give numbers, strings, lists and dictionaries"
        ) from None
    lines = ["import json", *imports, "", "", source.rstrip(), "", "", 'if __name__ == "__main__":']
    lines.append(f"    {function.__name__}(**json.loads({parameters!r}))")
    script = "\n".join(lines) + "\n"
    check_size({_FILE: len(script.encode())}, f"{title} with its arguments")
    if unknown := _unknown_names(script):
        raise ValueError(
            f"{title} uses {', '.join(unknown)}, which is defined outside of it; import it inside of the function, list its"
            " import statement in imports=, or give it as an argument"
        )
    return script


def _check_arguments(function: Function, args: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**args)
    except TypeError as error:
        raise ValueError(f"{function.__qualname__} cannot be called with args={dict(args)!r}: {error}") from None


def _check_import(line: str) -> None:
    try:
        statements = ast.parse(line).body
    except SyntaxError:
        statements = []
    if not statements or not all(isinstance(node, ast.Import | ast.ImportFrom) for node in statements):
        raise ValueError(f"imports= contains {line!r}, which is not an import statement such as 'import torch'")


def _unknown_names(script: str) -> list[str]:
    """Global names that the script reads and never binds, by the compiler's own symbol tables."""
    top = symtable.symtable(script, _FILE, "exec")
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    bound |= set(dir(builtins)) | {"__name__", "__file__", "__annotations__"}
    read: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            is_global = symbol.is_global() or (table is top and symbol.is_referenced())
            if is_global and symbol.is_assigned():
                bound.add(symbol.get_name())
            elif is_global and symbol.is_referenced():
                read.add(symbol.get_name())
    return sorted(name for name in read - bound if not keyword.iskeyword(name))
