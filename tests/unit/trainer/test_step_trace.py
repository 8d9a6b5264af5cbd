"""Traces of single steps can be loaded, and cost nothing outside of these steps."""

import gzip
import json
from unittest.mock import Mock

import pytest
import torch

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_session import step_trace
from ddpjob_session.step_trace import StepTrace, path_for
from ddpjob_trainer.config import parse_config


def train(path, *, first: int, last: int, steps: range) -> list[str]:
    """Take the steps with a trace of some of them. Returns what was reported."""
    said: list[str] = []
    trace = StepTrace(range(first, last), path, torch.device("cpu"), say=said.append, moved=lambda: None)
    for step in steps:
        trace.before_step(step)
        torch.ones(8, 8).matmul(torch.ones(8, 8))
    trace.close()
    return said


def names_in(path) -> set[str]:
    with gzip.open(path, "rt") as file:
        return {event["name"] for event in json.load(file)["traceEvents"] if "name" in event}


@pytest.mark.parametrize(
    ("steps", "traced"),
    [(range(8), {"step 3", "step 4"}), (range(4, 8), {"step 4"}), (range(4), {"step 3"})],
    ids=["all", "resumed between them", "stopped between them"],
)
def test_the_steps_from_the_first_up_to_the_last_are_in_the_trace(tmp_path, steps, traced):
    path = path_for([3, 5], {contract.DDPJOB_EVENTS_DIR: str(tmp_path)}, rank=1)
    said = train(path, first=3, last=5, steps=steps)
    assert path == tmp_path / "profile/attempt-1-rank-1.json.gz"
    names = names_in(path)
    assert {name for name in names if name.startswith("step ")} == traced
    assert "aten::matmul" in names
    assert said == [f"profileSteps: traces of the ranks in {tmp_path / 'profile'}"]


def test_a_training_that_resumes_later_records_nothing(tmp_path):
    assert train(tmp_path / "a.json.gz", first=3, last=5, steps=range(5, 8)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_cannot_be_written_does_not_end_the_training(tmp_path):
    (tmp_path / "file").touch()
    (said,) = train(tmp_path / "file" / "a.json.gz", first=0, last=1, steps=range(2))
    assert "cannot be written" in said


def test_a_trace_needs_a_folder():
    with pytest.raises(ConfigError, match=r"profileSteps is \[3, 5\].*DDPJOB_EVENTS_DIR"):
        path_for([3, 5], {}, rank=0)


@pytest.mark.parametrize("steps", [[3], [5, 3], [3, 3], [0, 101], [-1, 2], [1, 2, 3]])
def test_steps_that_make_no_sense_are_refused(steps):
    with pytest.raises(ConfigError, match="profileSteps"):
        parse_config({"recipe": "digits", "profileSteps": steps})
    assert parse_config({"recipe": "digits", "profileSteps": [100, 110]}).profile_steps == [100, 110]


@pytest.mark.parametrize(("device", "recorded"), [("cpu", {"CPU"}), ("cuda", {"CPU", "CUDA"})])
def test_what_a_gpu_does_is_recorded_too(monkeypatch, tmp_path, device, recorded):
    monkeypatch.setattr(step_trace, "profile", profile := Mock())
    trace = StepTrace(range(1), tmp_path / "a.json.gz", torch.device(device), say=print, moved=lambda: None)
    trace.before_step(0)
    assert {activity.name for activity in profile.call_args.kwargs["activities"]} == recorded
