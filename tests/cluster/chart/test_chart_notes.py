"""What `helm install` prints can be pasted."""

import re

import pytest
import yaml

from ddpjob_operator.api import names
from support.chart_render import CHART, helm


def notes(values=None, namespace="ddpjob-system"):
    text = helm("install", "x", CHART, "--namespace", namespace, "--dry-run=client", values=values or {})
    return text.partition("\nNOTES:\n")[2]


def job(text):
    return yaml.safe_load(re.search(r"<<'YAML'\n(.*?)\nYAML\n", text, re.DOTALL)[1])


@pytest.mark.parametrize(
    ("namespaces", "watched", "job_namespace"),
    [
        ([], "all namespaces", "ddpjob-system"),
        (["team-a", "team-b"], "team-a, team-b", "team-a"),
        (["team-a", "ddpjob-system"], "team-a, ddpjob-system", "ddpjob-system"),
    ],
)
def test_the_notes_stay_within_the_scope(namespaces, watched, job_namespace):
    text = notes({"watch": {"namespaces": namespaces}})
    assert f"The operator runs the DDPJobs of {watched}." in text
    assert job(text)["metadata"]["namespace"] == job_namespace
    assert set(re.findall(r"kubectl (?:get|logs) .*--namespace (\S+)", text)) == {job_namespace}


def test_the_api_server_accepts_the_job_of_the_notes(cluster):
    namespace = cluster.namespace()
    cluster.install_crd()
    text = notes(namespace=namespace)
    command, manifest = re.search(
        r"^kubectl (apply .*) <<'YAML'\n(.*?)\nYAML\n", text, re.DOTALL | re.MULTILINE
    ).groups()
    cluster.kubectl(*command.split(), stdin=manifest)
    assert cluster.kubectl.json("get", "ddpjob", job(text)["metadata"]["name"], "-n", namespace)["spec"]["nodes"] == 2


def test_the_log_command_selects_by_the_operators_labels():
    selector = re.search(r"kubectl logs .*--selector (\S+)", notes())[1]
    assert selector == f"{names.LABEL_JOB}=digits,{names.LABEL_RANK}=0"
