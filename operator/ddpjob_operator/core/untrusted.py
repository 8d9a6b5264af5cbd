"""Text that a program or the cluster wrote, made safe to parse, to store and to show.

Any image can print anything, and megabytes of it. Parsers therefore look at the end of a text only (`tail`,
`last_lines`) and take time in proportion to its length; what goes into a status, an Event or a terminal contains no
control characters.
"""

import re
from typing import Any

#: Longest text that is parsed, in characters.
MAX_PARSED_LENGTH = 64 * 1024
MAX_PARSED_LINES = 2000
#: Longest text that is taken over into a status, in characters.
MAX_SHOWN_LENGTH = 1024

#: Escape sequences: CSI, then strings (OSC, DCS, SOS, PM, APC) up to their end, then two-character ones.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b.?"
)
#: Other control characters but the tabulator, the separators of lines and paragraphs, and what has no width, fills, or changes
#: the direction of writing: https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point, of which only the variation
#: selectors stay, since emoji have them. Halves of characters are no text either.
_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


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


def beginning(text: str, num_characters: int) -> str:
    """The text, or as much of its beginning as so many characters hold."""
    return text if len(text) <= num_characters else text[: num_characters - 1] + "…"


def visible_text(text: str) -> str:
    """What is visible of each line of a text."""
    return "\n".join(map(visible, text.split("\n"))) if _CONTROL.search(text.replace("\n", "")) else text


def visible_strings(value: Any) -> Any:
    """A JSON value in which each string, also the names of fields, is one visible line."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [visible_strings(item) for item in value]
    if isinstance(value, dict):
        return {visible(name): visible_strings(item) for name, item in value.items()}
    return value
