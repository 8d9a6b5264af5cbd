"""The recorder of the README's picture shows what a terminal shows, and draws it as an SVG without scripts."""

import xml.etree.ElementTree as ET
from pathlib import Path

from recording.svg import spans, svg
from recording.terminal import Style, Terminal

PICTURE = Path(__file__).parents[2] / "docs/images/recording.svg"


def shown(*texts: str) -> list[str]:
    terminal = Terminal(10, 3)
    for text in texts:
        terminal.write(text)
    return ["".join(character for character, _ in row).rstrip() for row in terminal.rows]


def test_lines_scroll_wrap_and_are_overwritten() -> None:
    assert shown("a\r\nb\r\nc\r\nd") == ["b", "c", "d"]
    assert shown("0123456789abc") == ["0123456789", "abc", ""]
    assert shown("first\rF") == ["First", "", ""]


def test_a_live_view_is_replaced() -> None:
    assert shown("log\r\nbar 1\r\nbar 2", "\r\x1b[2K\x1b[1A\x1b[2K", "\x1b[?25lnew") == ["log", "new", ""]
    assert shown("a\r\nb\x1b[H\x1b[J") == ["", "", ""]


def test_colours_of_all_kinds() -> None:
    terminal = Terminal(6, 1)
    terminal.write("\x1b[1;31ma\x1b[0mb\x1b[38;5;196mc\x1b[38;2;1;2;3;48;5;7md\x1b[39me\x1b[2mf")

    assert [style for _, style in terminal.rows[0]] == [
        Style("red", bold=True),
        Style(),
        Style("#ff0000"),
        Style("#010203"),
        Style(),
        Style(dim=True),
    ]


def test_a_line_is_drawn_once_while_it_does_not_change() -> None:
    terminal, frames = Terminal(4, 2), []
    for time, text in enumerate(("one", "\r\ntwo", "\rTWO")):
        terminal.write(text)
        frames.append((float(time), terminal.snapshot()))
    drawn = [("".join(character for character, _ in cells).strip(), span) for (_, cells), span in spans(frames, 9.0)]

    assert drawn == [("one", (0.0, 9.0)), ("two", (1.0, 2.0)), ("TWO", (2.0, 9.0))]
    assert ET.fromstring(svg(frames, 9.0, "<title>")).tag.endswith("svg")


def test_the_picture_of_the_readme_is_small_and_runs_no_script() -> None:
    text = PICTURE.read_text(encoding="utf-8")

    assert len(text) < 400_000
    assert "<script" not in text
    assert ET.fromstring(text).tag.endswith("svg")
