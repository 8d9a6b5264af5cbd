"""helm uninstall leaves the jobs and their CRD, and nothing else."""

import testbed
from support.helm_release import RELEASE, helm


def test_uninstall_leaves_the_jobs_and_their_type(job, cluster) -> None:
    job.apply("kept", nodes=1, trainer={"recipe": "digits", "epochs": 1})
    job.wait_end()

    helm(cluster, "uninstall", RELEASE, "--wait")

    assert job.status["phase"] == "Succeeded"
    label = f"app.kubernetes.io/instance={RELEASE}"
    kinds = "deployments,pods,services,serviceaccounts,roles,rolebindings,configmaps,clusterroles,clusterrolebindings"
    testbed.wait_for(
        "everything of the release to be gone",
        lambda: not cluster.kubectl("get", kinds, "--all-namespaces", "-l", label, "-o", "name"),
    )
    assert "ddpjobs.ddpjob.dev" in cluster.kubectl("get", "crd", "-o", "name")
