"""The commands of the documents that need a cluster run as they are written there."""

import os
import re
import subprocess
import sys

import pytest

from support import REPOSITORY, documents

CHART = REPOSITORY / "charts/ddpjob-operator"


@pytest.mark.usefixtures("installed_operator")
def test_the_readme_installs_the_operator_and_trains(cluster) -> None:
    variables = {**documents.cluster_variables(cluster.kubeconfig), "PREFIX": "localhost/ddpjob"}
    try:
        output = documents.run(REPOSITORY / "README.md", "cluster", variables)
    finally:
        cluster.kubectl("delete", "ddpjob", "digits", "--ignore-not-found")

    accuracies = [float(text) for text in re.findall(r"accuracy ([\d.]+) %", output)]
    assert accuracies[-1] >= 97


@pytest.mark.usefixtures("installed_operator")
def test_the_readme_of_the_chart_installs_and_tests_it(cluster) -> None:
    variables = documents.cluster_variables(cluster.kubeconfig)

    assert "Succeeded" in documents.run(CHART / "README.md", "cluster", variables)


@pytest.mark.usefixtures("installed_operator")
def test_the_tutorial_shows_a_restart(cluster) -> None:
    variables = documents.cluster_variables(cluster.kubeconfig)
    try:
        output = documents.run(REPOSITORY / "docs/tutorial/first-job.md", "cluster", variables)
    finally:
        cluster.kubectl("delete", "ddpjob", "digits", "--ignore-not-found")

    assert "PodDeleted" in output


def test_the_program_of_the_python_page_trains_and_shows_the_log(cluster, namespace) -> None:
    page = (REPOSITORY / "docs/reference/python.md").read_text()
    program = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0].replace("team-a", namespace)

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert float(re.findall(r"\[rank 0\] after \d+ steps: accuracy ([\d.]+) %", done.stdout)[-1]) >= 97
