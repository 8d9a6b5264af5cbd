"""What a terminal obeys does not get through, however it is printed."""

import io
import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
import yaml
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ddpjob_cli.output import console, json_text, note, print_screen, yaml_text
from ddpjob_cli.visible_output import only_visible_output

HOSTILE = "\x1b]0;T\x07\x1b[38;5;201m\x9b2J\u202e\u200b\U000e0041a"


def of_rich(text: str) -> None:
    with Live(Text(text), console=Console(force_terminal=True), auto_refresh=False):
        pass


@pytest.mark.parametrize(
    "way",
    [
        print,
        note,
        typer.echo,
        print_screen,
        of_rich,
        lambda text: console().print(text),
        lambda text: Console(force_terminal=True, stderr=True).print(text, style="bold"),
        lambda text: sys.stderr.writelines([text]),
    ],
)
def test_only_visible_text_is_printed(way: Callable[[str], object], capsys: pytest.CaptureFixture[str]) -> None:
    with only_visible_output():
        way(HOSTILE)
    shown = "".join(capsys.readouterr())
    assert "a" in shown
    assert not any(part in shown for part in ("\x1b]", "38;5;201", "\x07", "\x9b", "\u202e", "\u200b", "\U000e0041"))


@pytest.mark.parametrize(("form", "read"), [(json_text, json.loads), (yaml_text, yaml.safe_load)])
def test_data_is_escaped_and_nothing_of_it_is_lost(
    form: Callable[[object], str], read: Callable[[str], object]
) -> None:
    assert read(form({"ü": HOSTILE + "\x85"})) == {"ü": HOSTILE + "\x85"}
    assert form({"a": HOSTILE + "\x85"}).isascii()
    assert "ü" in form({"a": "ü"})


def test_a_stream_of_another_encoding_gets_every_text(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with only_visible_output():
        print("loss · 1", flush=True)
    assert written.getvalue() == b"loss \\xb7 1\n"


def test_the_traceback_of_a_fault_of_the_command_is_visible_too() -> None:
    program = (
        "from ddpjob_cli.visible_output import *\nwith only_visible_output(): raise KeyError('a\\x1bb\\u202e', '\\x9b')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program.replace("KeyError", "RuntimeError")], capture_output=True, check=False
    )
    assert b"RuntimeError" in done.stderr
    assert b"\x1b" not in done.stderr
