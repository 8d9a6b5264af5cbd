"""`make demo-cluster`: the README's cluster path on two real nodes of this machine, from nothing to a trained network.

Uses the cluster of `make cluster-up` if it runs, else brings one up for as long as it takes.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import testbed
from helm_release import REPOSITORY, install, load_images
from job_on_cluster import JobOnCluster
from testbed import tools
from testbed.instance import InstanceError

EXAMPLE = REPOSITORY / "manifests/examples/digits.yaml"


def main() -> int:
    """Run the demonstration; 0 if the job succeeded."""
    with _cluster() as cluster:
        say("images")
        options = load_images(cluster)
        say("helm install")
        install(cluster, options)
        job = JobOnCluster(cluster.kubectl, "default")
        cluster.kubectl("delete", "--ignore-not-found", "-f", str(EXAMPLE))
        say("kubectl apply -f manifests/examples/digits.yaml")
        job.apply_file(EXAMPLE)
        job.wait_phase("Running", "Succeeded", seconds=180)
        say("kubectl logs --follow --tail=-1 --selector ddpjob.dev/job=digits,ddpjob.dev/rank=0")
        _kubectl(
            cluster.kubeconfig, "logs", "--follow", "--tail=-1", "--selector", "ddpjob.dev/job=digits,ddpjob.dev/rank=0"
        )
        status = job.wait_end(seconds=300)
        say("kubectl get ddpjob digits")
        _kubectl(cluster.kubeconfig, "get", "ddpjob", "digits")
    return 0 if status["phase"] == "Succeeded" else 1


def say(what: str) -> None:
    """Tell what comes next."""
    print(f"\n==> {what}", flush=True)


@contextlib.contextmanager
def _cluster() -> Iterator[testbed.Cluster]:
    name = os.environ.get("CLUSTER", "default")
    try:
        cluster = testbed.Cluster.attach(name)
    except InstanceError:
        say("a cluster of two nodes")
        with testbed.Cluster(nodes=2) as cluster:
            yield cluster
        return
    say(f"using the running cluster {name!r}")
    yield cluster


def _kubectl(kubeconfig: Path, *arguments: str) -> None:
    subprocess.run([str(tools.path("kubectl")), f"--kubeconfig={kubeconfig}", *arguments], check=True, timeout=600)


if __name__ == "__main__":
    sys.exit(main())
