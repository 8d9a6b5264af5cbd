"""`make demo-cluster`: the commands of the README that need a cluster, on two real nodes of this machine.

Uses the cluster of `make cluster-up` if it runs, otherwise brings one up for as long as the commands take.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

import testbed
from support import REPOSITORY, documents
from support.helm_release import install, load_images
from testbed.instance import InstanceError


def main() -> int:
    """Run the commands; the exit code is 1 if one of them fails."""
    with _cluster() as cluster:
        print("\n==> building and loading the images, and installing the operator", flush=True)
        install(cluster, load_images(cluster))  # replaces an operator of older code in a cluster that ran already
        cluster.kubectl("delete", "ddpjob", "digits", "--ignore-not-found")
        variables = {**documents.cluster_variables(cluster.kubeconfig), "PREFIX": "localhost/ddpjob"}
        print("\n==> running the commands of README.md", flush=True)
        try:
            documents.run(REPOSITORY / "README.md", "cluster", variables)
        except documents.DocumentError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


@contextlib.contextmanager
def _cluster() -> Iterator[testbed.Cluster]:
    name = os.environ.get("CLUSTER", "default")
    try:
        cluster = testbed.Cluster.attach(name)
    except InstanceError:
        print("\n==> bringing up a cluster of two nodes", flush=True)
        with testbed.Cluster(nodes=2) as cluster:
            yield cluster
        return
    print(f"\n==> using the running cluster {name!r}", flush=True)
    yield cluster


if __name__ == "__main__":
    sys.exit(main())
