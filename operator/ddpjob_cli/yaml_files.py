"""YAML as kubectl reads it, of files that may come from anybody: in one size, one depth, and with values that JSON has."""

import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

#: No field of a pod is nested deeper than 20.
MAX_DEPTH: Final = 60
#: Values of a document with all aliases replaced. A job has up to 128 KiB of JSON, in which each value takes two bytes.
MAX_VALUES: Final = 100_000


class _Loader(yaml.SafeLoader):
    """Refuses what has no meaning for the API server, with the line."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._num_values: dict[int, int] = {}
        """By node, with all that is below it."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth == MAX_DEPTH:
            raise _fault(event, f"found more than {MAX_DEPTH} levels")
        self._depth += 1
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._num_values:
                raise _fault(event, "found an alias of what contains it")
            return node
        children = node.value if isinstance(node.value, list) else []
        inner = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        self._num_values[id(node)] = 1 + sum(self._num_values[id(part)] for part in inner)
        if self._num_values[id(node)] > MAX_VALUES:
            raise _fault(node, f"found more than {MAX_VALUES:,} values, those of aliases included")
        return node

    def flatten_mapping(self, node: Any) -> None:
        """Apply merges (<<), once no key is there twice: of two values the last would win without a word."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise _fault(key, f"found the key {key.value} twice")
                seen.add(key.value)
        super().flatten_mapping(node)


def _fault(place: Any, text: str) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=place.start_mark)


_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    "int": (r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "merge": (r"<<", "<"),
}
#: No times and no numbers to the base of 60: for kubectl these are strings.
_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first.replace("\0", ""))
    )
_Loader.yaml_implicit_resolvers[""] = [("tag:yaml.org,2002:null", re.compile(r"\Z"))]
for _tag in ("set", "omap", "pairs", "binary", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_undefined)  # type: ignore[type-var]


def read_objects(path: Path) -> list[Any]:
    """The documents of a file, and of a List its items; `-` is standard input.

    Raises:
        ValueError: the file cannot be read, is not YAML, or contains what kubectl and the API server do not read.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        documents = [document for document in read_documents(text) if document is not None]
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({error.strerror}); give the path of a file in YAML") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}: is not UTF-8 text; give the path of a file in YAML") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: is not valid YAML: {_place(error)}") from None
    lists = [d["items"] if isinstance(d, dict) and _is_list(d) else [d] for d in documents]
    return [document for items in lists for document in items]


def _is_list(document: dict[str, Any]) -> bool:
    return document.get("kind") == "List" and isinstance(document.get("items"), list)


def _place(error: yaml.YAMLError) -> str:
    """Where a file is not YAML, why, and what to do; the error's own text calls each file "<unicode string>"."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = getattr(error, "problem", None) or ""
    why = ", ".join(filter(None, (getattr(error, "context", None), problem)))
    remedy = "indent with spaces instead of tabs" if "'\\t'" in problem else "correct that line"
    return f"line {mark.line + 1}, column {mark.column + 1}: {why}; {remedy}"


def read_documents(text: str) -> list[Any]:
    """The documents of a text.

    Raises:
        yaml.YAMLError: the text is not YAML, or contains what kubectl and the API server do not read.
    """
    return list(yaml.load_all(text, Loader=_Loader))  # a safe loader


def read_value(text: str) -> Any:
    """The value of a text of one document."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506  # a safe loader
