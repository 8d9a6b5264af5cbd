"""helm test proves the installation; helm uninstall leaves the jobs and their type, and nothing else."""

import pytest

from helm_release import RELEASE, SYSTEM_NAMESPACE, helm


@pytest.mark.usefixtures("operator")
def test_helm_test_runs_a_job_to_its_end(cluster) -> None:
    assert "Succeeded" in helm(cluster, "test", RELEASE)


def test_uninstall_leaves_the_jobs_and_their_type(job, cluster) -> None:
    job.apply("kept", nodes=1, trainer={"recipe": "digits", "epochs": 1})
    job.wait_end(seconds=120)

    helm(cluster, "uninstall", RELEASE, "--wait")

    assert job.status["phase"] == "Succeeded"
    kinds = "deployments,pods,services,serviceaccounts,roles,rolebindings,configmaps"
    label = f"app.kubernetes.io/instance={RELEASE}"
    left = cluster.kubectl("get", kinds, "-n", SYSTEM_NAMESPACE, "-l", label, "-o", "name")
    cluster_wide = cluster.kubectl("get", "clusterroles,clusterrolebindings", "-l", label, "-o", "name")
    assert (left, cluster_wide) == ("", "")
    assert "ddpjobs.ddpjob.dev" in cluster.kubectl("get", "crd", "-o", "name")
