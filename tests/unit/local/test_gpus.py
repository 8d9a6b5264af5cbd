"""Which GPUs a pod of a local run gets."""

from pathlib import Path

import pytest

from ddpjob_cli.local.gpus import gpus_for
from ddpjob_operator.api.spec import DDPJobSpec


def spec(**fields: object) -> DDPJobSpec:
    return DDPJobSpec.model_validate({"command": ["x"], **fields})


def test_a_job_without_gpus_needs_none() -> None:
    assert gpus_for(spec(nodes=4), {}) == ()


def test_a_pod_takes_as_many_gpus_as_it_needs_of_those_that_the_command_may_see() -> None:
    assert gpus_for(spec(gpusPerNode=2), {"CUDA_VISIBLE_DEVICES": "3, 1,0"}) == ("3", "1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"nodes": 2, "gpusPerNode": 2},
            r"needs 4 GPUs \(nodes x gpusPerNode is 2 x 2\), but this machine has 3; .* --set gpusPerNode=0",
        ),
        ({"gpusPerNode": 1, "gpuResource": "amd.com/gpu"}, r"spec.gpuResource is amd.com/gpu"),
    ],
)
def test_too_few_gpus_and_those_of_other_vendors_are_refused(fields, message) -> None:
    with pytest.raises(ValueError, match=message):
        gpus_for(spec(**fields), {"CUDA_VISIBLE_DEVICES": "0,1,2"})


@pytest.mark.parametrize(("exit_code", "offered"), [(0, "2"), (9, "none")])
def test_without_a_choice_the_drivers_tool_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int, offered: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '0\\n1\\n'\nexit {exit_code}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ValueError, match=f"this machine has {offered};"):
        gpus_for(spec(gpusPerNode=3), {})
