"""JSON of the API server to objects, without the part that is half of a pod and that nothing here reads: managedFields."""

import json
import re
from typing import Any

from ddpjob_operator.transport.resources import PODS, SERVICES, Resource

#: No field of a pod is nested deeper than 20.
MAX_DEPTH = 60
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}]')
#: Of these the API server writes managedFields as the last field of the metadata, and the spec after them.
_TYPED = frozenset((PODS, SERVICES))
_START = b',"managedFields":['
_END = b'}]},"spec":'


def decoded(resource: Resource, content: bytes) -> Any:
    """The value of a piece of JSON about such objects; ValueError if it is not JSON.

    The API server stores objects nested 10,000 deep. Where this process cannot read that, what is too deep becomes null: one
    object must not keep anybody from reading the others, or from deleting it.
    """
    text = _without_managed_fields(content) if resource in _TYPED else content
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_shallow(text))


def _shallow(content: bytes) -> bytes:
    parts: list[bytes] = []
    depth = kept_from = 0
    for token in _TOKEN.finditer(content):
        if token[0] in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                parts += content[kept_from : token.start()], b"null"
        elif token[0] in b"]}":
            if depth == MAX_DEPTH + 1:
                kept_from = token.end()
            depth -= 1
    return b"".join((*parts, content[kept_from:]))


def shallow(value: Any, depth: int = MAX_DEPTH) -> Any:
    """A JSON value without what is nested deeper: whatever walks through it then ends within Python's recursion limit."""
    if isinstance(value, dict):
        return {name: shallow(inner, depth - 1) for name, inner in value.items()} if depth else None
    if isinstance(value, list):
        return [shallow(inner, depth - 1) for inner in value] if depth else None
    return value


def _without_managed_fields(content: bytes) -> bytes:
    """The JSON text without managedFields, or as it is where they are not as expected.

    Within JSON no string contains an unescaped quote, so neither mark can be part of one. And managedFields contain no
    list, so that the first end of a list after their start is their own.
    """
    parts: list[bytes] = []
    kept_from = 0
    while (start := content.find(_START, kept_from)) >= 0:
        end = content.find(_END, start)
        if end < 0 or content.find(b'}],"', start, end) >= 0:  # Another order of fields, by a proxy for example.
            return content
        parts.append(content[kept_from:start])
        kept_from = end + 2
    return b"".join((*parts, content[kept_from:])) if parts else content
