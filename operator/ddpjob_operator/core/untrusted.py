"""Text that a program or the cluster wrote, made safe to parse, to store and to show.

Any image can print anything, and megabytes of it. Parsers therefore look at the end of a text only (`tail`,
`last_lines`) and take time in proportion to its length; what goes into a status, an Event or a terminal contains no
control characters.
"""

import re

#: Longest text that is parsed, in characters.
MAX_PARSED_LENGTH = 64 * 1024
MAX_PARSED_LINES = 2000
#: Longest text that is taken over into a status, in characters.
MAX_SHOWN_LENGTH = 1024

#: Escape sequences: CSI, then strings (OSC, DCS, SOS, PM, APC) up to their end, then two-character ones.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.?"
)
#: Other control characters but the tabulator, the separators of lines and paragraphs, and the marks that change the
#: direction of writing (https://www.unicode.org/reports/tr9/#Directional_Formatting_Characters).
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def tail(text: str) -> str:
    """The end of a text, which is the part that is parsed."""
    return text[-MAX_PARSED_LENGTH:]


def last_lines(text: str) -> list[str]:
    """The lines at the end of a text, which are the ones that are parsed."""
    return tail(text).splitlines()[-MAX_PARSED_LINES:]


def visible(line: str) -> str:
    """The line without anything that moves the cursor, sets colours or titles, or hides or reorders text.

    Of a line that overwrites itself by carriage returns, as progress bars do, the last state remains.
    """
    shown = _ESCAPE.sub("", line).rstrip("\r").rpartition("\r")[2]
    return _CONTROL.sub("", shown)


def printable(text: str) -> str:
    """What is visible of a text, on one line; of a long text the last MAX_SHOWN_LENGTH characters."""
    end = text[-8 * MAX_SHOWN_LENGTH :]  # escape sequences and white space take up some of it
    line = " ".join(" ".join(visible(line) for line in end.split("\n")).split())
    return line if len(line) <= MAX_SHOWN_LENGTH else "…" + line[1 - MAX_SHOWN_LENGTH :]
