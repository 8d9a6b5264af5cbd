"""YAML is read as kubectl reads it, and a file of somebody else costs neither time nor a traceback."""

from pathlib import Path

import pytest
import yaml

from ddpjob_cli.__main__ import main
from ddpjob_cli.yaml_files import MAX_DEPTH, read_documents, read_value

_BOMB = "\n".join(
    ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]", *(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))]
)
_MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 9))]
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (_BOMB, "more than 100,000 values"),
        (_MERGES, "more than 100,000 values"),
        ("a: &a [*a]", "an alias of what contains it"),
        ("a: &a {b: *a}", "an alias of what contains it"),
        ("[" * 3000, f"more than {MAX_DEPTH} levels"),
        ("- " * 3000 + "x", f"more than {MAX_DEPTH} levels"),
        ("{a: " * 3000, f"more than {MAX_DEPTH} levels"),
        ("nodes: 2\nnodes: 3", "the key nodes twice"),
        ("a: {b: 1, b: 2}", "the key b twice"),
        ("? [a]\n: 1", "unhashable"),
        *(
            (f"a: !!{tag} {value}", "could not determine a constructor")
            for tag, value in (("set", "{x}"), ("binary", "eA=="))
        ),
    ],
)
def test_what_no_server_reads_is_refused(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(yaml.YAMLError, match=fault):
        read_documents(text)
    (tmp_path / "job.yaml").write_text(text)
    for command in ("validate", "convert"):
        assert main([command, str(tmp_path / "job.yaml")]) == 2
        assert "is not valid YAML" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            ("2026-01-01", "2026-01-01"),
            ("12:30:45", "12:30:45"),
            ("1e3", 1000.0),
            ("1_000", 1000),
            ("010", 8),
            ("0x1F", 31),
        ),
        *(
            ("yes", True),
            ("off", False),
            ("~", None),
            ("", None),
            ("1.5", 1.5),
            ("-3", -3),
            ("1.2.3", "1.2.3"),
            ("=", "="),
        ),
        ("{<<: {a: 1, b: 1}, a: 2}", {"a": 2, "b": 1}),
        ("[&a {x: 1}, *a]", [{"x": 1}, {"x": 1}]),
    ],
)
def test_values_are_those_of_kubectl(text: str, value: object) -> None:
    assert read_value(text) == value
