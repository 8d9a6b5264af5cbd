"""The workflows of .github cannot run here, so actionlint checks them, and every make target that they run exists."""

import re
import subprocess

import pytest
import yaml

from support.chart_render import REPOSITORY
from testbed import tools

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yaml"))


def test_actionlint_accepts_the_workflows() -> None:
    command = [tools.path("actionlint"), "-no-color", "-shellcheck=", "-pyflakes=", *WORKFLOWS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)

    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_the_commands_of_the_workflows_exist(workflow) -> None:
    text = workflow.read_text()
    makefile = (REPOSITORY / "Makefile").read_text()
    dockerfile = (REPOSITORY / "Dockerfile").read_text()

    for target in re.findall(r"run: make (\S+)", text):
        assert f"\n{target}:" in makefile, target
    for job in yaml.safe_load(text)["jobs"].values():
        for target in job.get("strategy", {}).get("matrix", {}).get("target", []):
            assert f" AS {target}\n" in dockerfile, target
    for target in re.findall(r"docker build --target (\S+)", text):
        assert f" AS {target}\n" in dockerfile, target
