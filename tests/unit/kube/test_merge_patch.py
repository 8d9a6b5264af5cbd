"""The patch that turns one status into another, as RFC 7386 defines it."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpjob_operator.api.status import DDPJobStatus, Progress
from ddpjob_operator.kube.engine.status_writer import merge_patch_between
from simulation.api_server import merged


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1, "b": 2}, {"b": 2}, {"a": None}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 3}}, {"a": {"y": 3}}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, {"a": {"y": None}}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": None}}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
        ({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({}, {"a": {}}, {"a": {}}),
    ],
)
def test_only_what_differs_is_named(old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]) -> None:
    assert merge_patch_between(old, new) == patch


_leaves = st.sampled_from([0, 1, "x", [1], [1, 2]])
_inner = st.dictionaries(st.sampled_from("ab"), _leaves, max_size=2)
_objects = st.dictionaries(st.sampled_from("ab"), _leaves | _inner, max_size=2)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # a busy machine is no failure
@given(old=_objects, new=_objects)
def test_applied_to_the_old_it_gives_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merged(old, merge_patch_between(old, new)) == new


def test_a_field_that_became_none_is_removed() -> None:
    old = DDPJobStatus(ready="1/2", progress=Progress(step=1, loss=0.5)).as_json()
    new = DDPJobStatus(progress=Progress(step=2)).as_json()
    assert merge_patch_between(old, new) == {"ready": None, "progress": {"step": 2, "loss": None}}
