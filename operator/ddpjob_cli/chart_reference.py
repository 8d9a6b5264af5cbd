"""The generated table of the chart's values, and the page of the site that repeats the chart's README.

The table has each key, its default and the comment above it in values.yaml. The README is packaged with the chart, so the site, which
holds the files of docs/ alone, has a copy.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

_VALUES = Path("charts/ddpjob-operator/values.yaml")
_README = Path("charts/ddpjob-operator/README.md")


def values() -> str:
    """The table, of the chart below the current directory."""
    text = _VALUES.read_text(encoding="utf-8")
    document = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(document, yaml.MappingNode), "values.yaml is a mapping"
    rows = [f"| `{key}` | `{default}` | {meaning} |" for key, default, meaning in _leaves(document, text.splitlines())]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows])


def readme() -> str:
    """The chart's README without its title, with links as a page in docs/reference has them."""
    _, _, text = _README.read_text(encoding="utf-8").partition("\n")
    text = re.sub(r"<!-- (?:part: .*|end of part) -->\n\n?", "", text)
    return (
        re.sub(r"<!-- run: \w[^>]* -->", "<!-- run: skip: a copy of the chart's README -->", text)
        .replace("](../../docs/", "](../")
        .strip()
    )


def _leaves(
    mapping: yaml.MappingNode, lines: Sequence[str], prefix: str = "", inherited: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Key, default and comment of each value. The comment of a mapping is put before that of its first value."""
    for key, value in mapping.value:
        meaning = f"{inherited} {_comment_above(lines, key.start_mark.line)}".strip()
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _leaves(value, lines, f"{prefix}{key.value}.", meaning)
        else:
            default = lines[value.start_mark.line][value.start_mark.column : value.end_mark.column]
            yield f"{prefix}{key.value}", default, meaning.replace("|", "\\|").replace("<", "&lt;")
        inherited = ""


def _comment_above(lines: Sequence[str], line: int) -> str:
    """The comment that ends in the line before a key, in one line."""
    first = line
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(text.strip().lstrip("# ") for text in lines[first:line])
