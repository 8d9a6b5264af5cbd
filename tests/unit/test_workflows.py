"""The workflows of .github: what they run exists, and nobody can change the actions that they use."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.y*ml"))

each_workflow = pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)


def jobs(workflow: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(workflow.read_text())["jobs"].values())


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(workflow) for step in job["steps"]]


@each_workflow
def test_each_action_is_named_by_the_digest_of_a_commit_and_says_which_release_that_is(workflow: Path) -> None:
    lines = re.findall(r"uses: (.*)", workflow.read_text())
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


def test_an_action_has_the_same_digest_everywhere() -> None:
    found = {action for workflow in WORKFLOWS for action in re.findall(r"uses: (\S+)", workflow.read_text())}
    names = [action.partition("@")[0] for action in found]
    assert sorted(names) == sorted(set(names))


@each_workflow
def test_what_a_workflow_runs_exists(workflow: Path) -> None:
    makefiles = "".join(file.read_text() for file in (REPOSITORY / "Makefile", *(REPOSITORY / "hack").glob("*.mk")))
    commands = "\n".join(step["run"] for step in steps(workflow) if "run" in step)

    for target in re.findall(r"\bmake (\S+)", commands):
        assert f"\n{target}:" in makefiles, target
    for program in re.findall(r"(?<!/)(?:\.ci|charts|hack)/\S+", commands):
        assert (REPOSITORY / program).exists(), program


@each_workflow
def test_the_images_of_a_workflow_are_targets_of_the_dockerfile(workflow: Path) -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    for job in jobs(workflow):
        for target in job.get("strategy", {}).get("matrix", {}).get("target", []):
            assert f" AS {target}\n" in dockerfile, target


def test_a_change_lands_by_the_same_script_on_github() -> None:
    (script,) = [
        step["run"] for step in steps(REPOSITORY / ".github/workflows/ci.yaml") if ".ci/run" in step.get("run", "")
    ]
    assert script.endswith(" .ci/run")


@each_workflow
def test_no_password_is_an_argument_of_a_command(workflow: Path) -> None:
    """Other processes of the machine can read arguments; the shell expands `<<< "$PASSWORD"` itself."""
    commands = "\n".join(step["run"] for step in steps(workflow) if "run" in step)
    assert re.findall(r"--password[= ]\S*", commands) == []
    assert "secrets." not in commands


def test_the_provenance_of_an_image_has_no_build_arguments() -> None:
    modes = re.findall(r"provenance[:=] ?(mode=\w+)", "".join(file.read_text() for file in WORKFLOWS))
    assert modes == ["mode=min"]
    assert "provenance=mode=max" not in (REPOSITORY / "RELEASING.md").read_text()
