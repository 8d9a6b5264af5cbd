"""The commands of the documents that need a cluster run as they are written there."""

import re

import pytest

import documents

CHART = documents.REPOSITORY / "charts/ddpjob-operator"


@pytest.mark.usefixtures("operator")
def test_the_readme_installs_the_operator_and_trains(cluster) -> None:
    variables = {**documents.cluster_variables(cluster.kubeconfig), "PREFIX": "localhost/ddpjob"}
    try:
        output = documents.run(documents.REPOSITORY / "README.md", "cluster", variables)
    finally:
        cluster.kubectl("delete", "ddpjob", "digits", "--ignore-not-found")

    accuracies = [float(text) for text in re.findall(r"accuracy ([\d.]+) %", output)]
    assert accuracies[-1] >= 97


@pytest.mark.usefixtures("operator")
def test_the_readme_of_the_chart_installs_and_tests_it(cluster) -> None:
    variables = documents.cluster_variables(cluster.kubeconfig)

    assert "Succeeded" in documents.run(CHART / "README.md", "cluster", variables)


@pytest.mark.usefixtures("operator")
def test_the_tutorial_shows_a_restart(cluster) -> None:
    variables = documents.cluster_variables(cluster.kubeconfig)
    try:
        output = documents.run(documents.REPOSITORY / "docs/tutorial/first-job.md", "cluster", variables)
    finally:
        cluster.kubectl("delete", "ddpjob", "digits", "--ignore-not-found")

    assert "PodDeleted" in output
