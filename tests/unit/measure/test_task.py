"""What is measured and what was found survive the way to the ranks and back."""

import json
from typing import Any, cast

import pytest

from ddpjob_measure.measuring import program_of
from ddpjob_measure.task import Figures, MeasureError, Task
from ddpjob_ranks.errors import ConfigError
from support.figures import figures


def test_figures_survive_the_way_through_the_output():
    sent = figures(2, 100.0)
    assert Figures.from_output(f"noise\n{sent.line()}\nmore noise") == sent


def test_an_output_without_figures_is_shown():
    with pytest.raises(MeasureError, match=r"no line that starts with 'ddpjob-measure '; its output ends: Killed"):
        Figures.from_output("Killed")


def test_a_task_with_an_unknown_field_is_refused():
    with pytest.raises(ValueError, match="unexpected keyword argument 'speed'"):
        Task.from_json('{"program": "trainer", "config": {}, "speed": 1}')


@pytest.mark.parametrize("name", ["rocket", "no_such_module:function", "json:rocket"])
def test_an_unknown_program_is_refused(name):
    with pytest.raises(
        ConfigError, match=rf"no program {name} .*; expected one of trainer, plain, buckets, or module:"
    ):
        program_of(name)


def test_a_program_may_be_a_function_of_any_module():
    assert program_of("json:dumps") is cast("Any", json.dumps)
