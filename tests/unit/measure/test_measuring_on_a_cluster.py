"""Jobs of `scale` on a cluster: manifests that the real type accepts, and kubectl driven to the end of each."""

import json
import stat
from dataclasses import replace

import pytest
import yaml

from ddpjob_cli.manifest import read_manifest
from ddpjob_measure.jobs import Cluster, manifest
from ddpjob_measure.task import MeasureError, Task
from ddpjob_ranks.errors import ConfigError
from support.figures import figures

TASK = Task(program="trainer", config={"recipe": "digits", "globalBatchSize": 64})
TEMPLATE = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "metadata": {"name": "scale"},
    "spec": {"trainer": {"recipe": "digits"}, "resources": {"requests": {"cpu": "250m"}}},
}

KUBECTL = """#!/bin/sh
echo "$@" >> {folder}/calls
case "$*" in
  *apply*) cat > {folder}/applied ;;
  *get*) cat {folder}/status ;;
  *logs*) cat {folder}/log ;;
esac
"""


@pytest.fixture
def cluster(tmp_path):
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Cluster(
        kubeconfig=tmp_path / "config", namespace="team", template=TEMPLATE, kubectl=str(program), job_seconds=0
    )


@pytest.mark.parametrize(("world_size", "per_node", "nodes"), [(1, 1, 1), (3, 1, 3), (8, 4, 2), (2, 4, 1)])
def test_the_manifest_is_a_valid_job_of_that_many_ranks(tmp_path, world_size, per_node, nodes):
    job = manifest(TEMPLATE, TASK, world_size=world_size, processes_per_node=per_node)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    spec = read_manifest(tmp_path / "job.yaml").spec

    assert (spec.nodes, spec.nodes * (spec.processes_per_node or 1)) == (nodes, world_size)
    assert Task.from_json(job["spec"]["command"][-1]) == TASK
    assert job["metadata"]["name"] == f"scale-{world_size}"


def test_the_code_is_mounted_next_to_what_the_template_has():
    pod = {"containers": [{"name": "log"}, {"name": "trainer", "volumeMounts": [{"name": "data"}]}], "volumes": [1]}
    template = {**TEMPLATE, "spec": {"template": {"spec": pod}, "env": [{"name": "A", "value": "b"}]}}
    spec = manifest(template, TASK, world_size=1, processes_per_node=1)["spec"]
    assert spec["env"] == [{"name": "A", "value": "b"}, {"name": "PYTHONPATH", "value": "/ddpjob-measure"}]
    log, trainer = spec["template"]["spec"]["containers"]
    assert log == {"name": "log"}
    assert [mount["name"] for mount in trainer["volumeMounts"]] == ["data", "ddpjob-measure"]
    assert spec["template"]["spec"]["volumes"] == [1, {"name": "ddpjob-measure", "configMap": {"name": "scale-1"}}]


def test_ranks_that_leave_a_node_half_empty_are_refused():
    with pytest.raises(ConfigError, match="6 ranks do not fill nodes of 4; set --processes-per-node to a divisor"):
        manifest(TEMPLATE, TASK, world_size=6, processes_per_node=4)


def test_the_figures_come_from_the_log_of_rank_0_and_the_job_is_deleted(cluster, tmp_path):
    expected = figures(2, 100.0)
    (tmp_path / "status").write_text(json.dumps({"status": {"phase": "Succeeded", "attempt": 2}}))
    (tmp_path / "log").write_text(f"hello\n{expected.line()}\n")
    assert replace(cluster, job_seconds=60).run(TASK, 2) == expected
    calls = (tmp_path / "calls").read_text().splitlines()
    assert any("--namespace team logs scale-2-2-0" in call for call in calls)
    assert calls[-1].endswith("delete configmap/scale-2 ddpjob/scale-2 --wait=false")
    code, job = json.loads((tmp_path / "applied").read_text())["items"]
    assert job["spec"]["nodes"] == 2
    assert code["metadata"]["name"] == "scale-2"
    assert "rank.py" in code["data"]


def test_the_error_of_a_failed_job_has_its_reason_and_its_log(cluster, tmp_path):
    (tmp_path / "status").write_text(json.dumps({"status": {"phase": "Failed", "reason": "R", "message": "M"}}))
    (tmp_path / "log").write_text("Traceback")
    with pytest.raises(MeasureError, match="job scale-1: R: M\nTraceback"):
        replace(cluster, job_seconds=60).run(TASK, 1)


def test_a_job_that_does_not_end_in_time_is_deleted(cluster, tmp_path):
    (tmp_path / "status").write_text(json.dumps({"status": {"phase": "Queued"}}))
    with pytest.raises(MeasureError, match="job scale-1 has not ended within 0 s"):
        cluster.run(TASK, 1)
    assert "delete configmap/scale-1 ddpjob/scale-1 --wait=false" in (tmp_path / "calls").read_text()
