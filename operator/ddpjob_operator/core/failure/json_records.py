"""Exceptions in the records of loggers that write JSON, as the lines that the interpreter would have printed.

python-json-logger, structlog and loguru put a whole traceback into one string of the record, structlog also type and
message into fields of their own.
"""

import json
from typing import Any

from ddpjob_operator.core.failure.tracebacks import TRACEBACK, source_and_text

_TYPE, _VALUE = "exc_type", "exc_value"
#: Longer records are not parsed.
_MAX_LENGTH = 64 * 1024
#: A record has more than these in no logger that is known.
_MAX_VALUES = 2000


def lines_of_record(line: str) -> str:
    """The traceback of a record as lines; the line itself if it is no record with one."""
    if TRACEBACK not in line and f'"{_TYPE}"' not in line:
        return line
    start = line.find("{")
    bare = source_and_text(line)[1]
    if not bare.startswith("{") or len(bare) > _MAX_LENGTH:
        return line
    try:
        found = _traceback(json.loads(line[start:]))
    except (ValueError, RecursionError):
        return line
    return "\n".join(f"{line[:start]}{one}" for one in found.splitlines()) if found else line


def _traceback(record: Any) -> str:
    """The first one in the record. Records are untrusted, so this neither recurses nor looks at all of a large one."""
    waiting = [record]
    for _ in range(_MAX_VALUES):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, str) and TRACEBACK in value:
            return value
        if isinstance(value, dict):
            if isinstance(value.get(_TYPE), str):
                return f"{TRACEBACK}:\n{value[_TYPE]}: {value.get(_VALUE, '')}"
            waiting += reversed(value.values())
        elif isinstance(value, list):
            waiting += reversed(value)
    return ""
