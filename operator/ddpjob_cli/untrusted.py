"""Text of programs, made safe for a terminal."""

import re

#: Escape sequences: CSI, then strings (OSC, DCS, SOS, PM, APC) up to their end, then two-character ones.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.?"
)
#: Other control characters but the tabulator, and the marks that turn the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(line: str) -> str:
    """The line without anything that moves the cursor, sets colours or titles, or hides text.

    Of a line that overwrites itself by carriage returns, as progress bars do, its last state remains.
    """
    visible = _ESCAPE.sub("", line).rstrip("\r").rpartition("\r")[2]
    return _CONTROL.sub("", visible)
