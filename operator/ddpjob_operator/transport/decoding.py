"""JSON of the API server to objects, without the part that is half of a pod and that nothing here reads: managedFields."""

import json
from typing import Any

from ddpjob_operator.transport.resources import PODS, SERVICES, Resource

#: Of these the API server writes managedFields as the last field of the metadata, and the spec after them.
_TYPED = frozenset((PODS, SERVICES))
_START = b',"managedFields":['
_END = b'}]},"spec":'


def decoded(resource: Resource, content: bytes) -> Any:
    """The value of a piece of JSON about such objects; ValueError if it is not JSON."""
    return json.loads(_without_managed_fields(content) if resource in _TYPED else content)


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
