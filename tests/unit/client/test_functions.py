"""What can be sent as a function, and the script that comes of it."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ddpjob.client.functions import function_job, function_script

RATE = 0.1


def train(epochs: int, name: str = "net") -> None:
    import json

    def inner() -> int:
        return epochs * 2

    print(json.dumps([inner(), name]))


def uses_an_import(x: float) -> None:
    print(math.sqrt(x))  # type: ignore[name-defined]  # noqa: F821


def uses_a_global() -> None:
    print(RATE)


async def is_a_coroutine() -> None:
    pass


def around() -> Callable[[], None]:
    rate = 0.5

    def inside() -> None:
        print(rate)

    return inside


def ran(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_the_script_calls_the_function_with_its_arguments() -> None:
    assert ran(function_script(train, args={"epochs": 3, "name": "it's"}, imports=())) == '[6, "it\'s"]\n'


def test_stated_imports_are_at_the_top() -> None:
    assert ran(function_script(uses_an_import, args={"x": 9}, imports=["import math"])) == "3.0\n"


@pytest.mark.parametrize(
    ("function", "args", "imports", "message"),
    [
        (uses_an_import, {"x": 1}, (), "uses_an_import uses math, which is defined outside of it; import it inside"),
        (uses_a_global, {}, (), "uses_a_global uses RATE, which is defined outside of it"),
        (around(), {}, (), "uses rate of the function around it; give them as arguments with args="),
        (lambda: None, {}, (), "is not a function that was defined with `def`"),
        (print, {}, (), "print is not a function that was defined with `def`"),
        (is_a_coroutine, {}, (), "is a coroutine function"),
        (train, {"epoch": 1}, (), "cannot be called with args="),
        (train, {"epochs": object()}, (), "args of train are not JSON"),
        (
            train,
            {"epochs": 1, "name": "x" * 2_000_000},
            (),
            "train with its arguments: found 1 files of 1.9 MiB, and a job takes at most",
        ),
        (train, {"epochs": 1}, ["print(1)"], r"imports= contains 'print\(1\)', which is not an import statement"),
    ],
)
def test_what_cannot_be_sent_says_why(
    function: Callable[..., object], args: dict[str, Any], imports: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function_script(function, args=args, imports=imports)


@pytest.mark.parametrize(
    ("spec", "launcher"),
    [
        ({}, ["python", "-u"]),
        ({"gpusPerNode": 1}, ["python", "-u"]),
        ({"gpusPerNode": 4}, ["torchrun"]),
        ({"gpusPerNode": 4, "processesPerNode": 1}, ["python", "-u"]),
    ],
)
def test_torchrun_starts_several_ranks_of_a_pod(spec: dict[str, Any], launcher: list[str]) -> None:
    job, files = function_job(train, name=None, spec=spec, args={"epochs": 1}, imports=())
    assert job["spec"]["command"] == [*launcher, *files]
    assert job["metadata"]["name"].startswith("train-")
