"""`python -m ddpjob_measure scale` on a cluster: each row of its table is a separate job."""

import json
import subprocess
import sys
from pathlib import Path

import testbed
from support.job_on_cluster import RESOURCES
from testbed import tools

TEMPLATE = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "metadata": {"name": "scale"},
    "spec": {"nodes": 1, "trainer": {"recipe": "digits"}, "resources": RESOURCES},
}


def test_one_and_two_ranks_are_two_jobs(
    cluster: testbed.Cluster | testbed.ExternalCluster, namespace: str, tmp_path: Path
) -> None:
    template = tmp_path / "job.json"
    template.write_text(json.dumps(TEMPLATE))
    place = ["--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace, "--kubectl", str(tools.path("kubectl"))]
    sizes = ["--processes", "1", "2", "--modes", "strong", "--batch", "64", "--steps", "5", "--windows", "2"]
    record = ["--template", str(template), "--results", str(tmp_path), "--name", "scale"]
    command = [sys.executable, "-m", "ddpjob_measure", "scale", *place, *sizes, *record]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)

    print(done.stdout)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "scale.json").read_text())["rows"]
    assert [(row["world_size"], row["global_batch_size"]) for row in rows] == [(1, 64), (2, 64)]
    assert cluster.kubectl("get", "ddpjob", "--namespace", namespace, "--output=name").split() == []
