import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_cli.untrusted import printable


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain text, ünïcödé 数字\tand tabs", "plain text, ünïcödé 数字\tand tabs"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x9b31mred", "red"),
        ("\x1bPdevice string\x1b\\x", "x"),
        ("\x1bcreset", "reset"),
        (" 10 %\r 55 %\r100 %", "100 %"),
        ("ends like Windows\r", "ends like Windows"),
        ("bell\x07 null\x00 delete\x7f", "bell null delete"),
        ("right\u202etfel", "righttfel"),
        ("[bold]no markup[/bold]", "[bold]no markup[/bold]"),
    ],
)
def test_only_what_can_be_seen_remains(line: str, expected: str) -> None:
    assert printable(line) == expected


@given(st.text())
def test_no_control_character_ever_remains(line: str) -> None:
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in printable(line) if c != "\t")
