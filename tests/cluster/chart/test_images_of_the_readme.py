"""The README builds and pushes the images that the chart pulls."""

import os
import re
import shlex

from support import REPOSITORY, documents
from support.chart_render import operator_arguments, operator_pod

#: A docker that only records its arguments.
DOCKER = '#!/bin/sh\necho "$@" >> "$CALLS"\n'


def test_the_readme_builds_and_pushes_the_images_of_the_chart(tmp_path):
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    calls = tmp_path / "calls"

    documents.run(REPOSITORY / "README.md", "docker", {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)})

    commands = [shlex.split(line) for line in calls.read_text().splitlines()]
    built = {
        words[words.index("--tag") + 1]: words[words.index("--target") + 1] for words in commands if words[0] == "build"
    }
    pushed = {words[1] for words in commands if words[0] == "push"}
    values = {"imagePrefix": "registry.example.com/ml"}
    operator = operator_pod(values)["containers"][0]["image"]
    trainer = operator_arguments(values)[0].removeprefix("--trainer-image=")
    assert built == {operator: "operator", trainer: "trainer"}
    assert pushed == set(built)
    stages = re.findall(r"^FROM \S+ AS (\w+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert set(built.values()) <= set(stages)
