"""Where commands print: results on standard output, notes on standard error, colour on terminals only."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ddpjob_cli.failures import end_of_reader
from ddpjob_cli.options import Output
from ddpjob_operator.core.untrusted import visible_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


#: Columns where the output is not a terminal: a table for other programs is not cut off.
_WIDE = 1000


def console(*, stderr: bool = False) -> "Console":
    """A console for results, or for notes. Its text is never taken as markup, and not broken into lines where there is no terminal."""
    from rich.console import Console

    # https://no-color.org; rich itself handles FORCE_COLOR and similar variables.
    terminal = False if os.environ.get("NO_COLOR") else None
    stream = sys.stderr if stderr else sys.stdout
    # Bound now: during a live view rich puts a stream of its own around sys.stdout, and then finds ours, not what ours stands for.
    file = getattr(stream, "rich_proxied_file", stream)
    made = Console(file=file, stderr=stderr, highlight=False, markup=False, emoji=False, force_terminal=terminal)
    made.on_broken_pipe = end_of_reader  # type: ignore[method-assign]  # rich's own exit code means that the job failed
    if not (sys.stderr if stderr else sys.stdout).isatty():
        made.width = _WIDE
    return made


def print_screen(screen: "RenderableType") -> None:
    """Print a table or several; where there is no terminal, without the blanks that fill up the last column."""
    out = console()
    if out.is_terminal:
        out.print(screen)
        return
    with out.capture() as text:
        out.print(screen)
    print("\n".join(line.rstrip() for line in text.get().splitlines()), flush=True)


def indented(line: str) -> "RenderableType":
    """A line that stays to the right of its title, also where the terminal breaks it."""
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False)


def is_live() -> bool:
    """Whether standard output is a terminal that can show a live view."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


@contextmanager
def live() -> "Iterator[Callable[[RenderableType], None]]":
    """A screen of its own that shows what the function gets, as far as it fits; at the end the last one is printed as a whole."""
    from rich.live import Live

    out = console()
    last: RenderableType | None = None
    try:
        with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as view:

            def show(shown: "RenderableType") -> None:
                nonlocal last
                last = shown
                view.update(shown, refresh=True)

            yield show
    finally:
        if last is not None:
            out.print(last)


def note(text: str) -> None:
    """Print a sentence about what the command does; not a result. It may contain text of programs."""
    for line in text.splitlines():
        print(f"ddpjob: {line}", file=sys.stderr, flush=True)


def print_objects(bodies: Sequence[Mapping[str, Any]], output: Output, *, single: bool = False) -> None:
    """Print objects of the API in the format of `kubectl get -o`; `single` prints one as itself, not as a List."""
    shown: Any = bodies[0] if single else {"apiVersion": "v1", "kind": "List", "items": list(bodies)}
    print_data(shown, output, names=map(name_of, bodies))


def print_documents(bodies: Sequence[Mapping[str, Any]]) -> None:
    """Print objects as the documents of a YAML file."""
    for number, body in enumerate(bodies):
        if number:
            print("---")
        print_data(dict(body), Output.YAML)


def name_of(body: Mapping[str, Any]) -> str:
    """Kind and name of an object of the API, as `kubectl get -o name` prints it."""
    group = str(body["apiVersion"]).rpartition("/")[0]
    return f"{str(body['kind']).lower()}{'.' + group if group else ''}/{body['metadata']['name']}"


def print_data(data: Any, output: Output, *, names: Iterable[str] = ()) -> None:
    """Print any JSON value as JSON or YAML, or the names of what it is about."""
    if output is Output.NAME:
        for name in names:
            print(name)
    elif output is Output.JSON:
        print(json_text(data, indent=2))
    else:
        print(yaml_text(data), end="")


def json_text(data: Any, *, indent: int | None = None) -> str:
    """JSON that nothing is missing of when it is printed: characters that are not visible are escaped."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return text if visible_text(text) == text else json.dumps(data, indent=indent)


def yaml_text(data: Any, *, width: int = 110) -> str:
    """The same as YAML."""
    import yaml

    text = yaml.safe_dump(data, sort_keys=False, width=width, allow_unicode=True)
    return text if visible_text(text) == text else yaml.safe_dump(data, sort_keys=False, width=width)
