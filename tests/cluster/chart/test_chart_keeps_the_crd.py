"""The CRD outlives the release, and the next release, whatever its name, takes it over as README.md says."""

import json
import shutil

import pytest
import yaml

from support.chart_cluster import CRD
from support.chart_render import CHART, readme_commands
from testbed.helm import HelmError

JOB = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "metadata": {"name": "precious"},
    "spec": {"trainer": {"recipe": "digits"}},
}


def create_job(cluster, namespace):
    cluster.wait_for_crd()
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(JOB))
    return cluster.kubectl("get", "ddpjob", "precious", "-n", namespace, "--output=jsonpath={.metadata.uid}")


def owner(cluster):
    annotations = cluster.kubectl.json("get", "crd", CRD)["metadata"]["annotations"]
    return annotations["meta.helm.sh/release-name"], annotations["meta.helm.sh/release-namespace"]


def test_a_release_of_the_same_name_adopts_the_crd_that_was_kept(cluster):
    namespace = cluster.namespace()
    cluster.install(namespace)
    uid = create_job(cluster, namespace)
    cluster.uninstall(namespace)
    assert cluster.exists("ddpjob", "precious", "-n", namespace)
    cluster.install(namespace)
    assert cluster.kubectl.json("get", "ddpjob", "precious", "-n", namespace)["metadata"]["uid"] == uid


def test_a_second_release_is_refused_until_it_takes_ownership(cluster):
    first, second = cluster.namespace(), cluster.namespace()
    cluster.install(first)
    uid = create_job(cluster, first)
    cluster.uninstall(first)
    with pytest.raises(HelmError, match=rf'"{CRD}" .* exists and cannot be imported into the current release'):
        cluster.install(second, release="other")

    (command,) = readme_commands("helm install NAME", NAME="other", NAMESPACE=second)
    cluster.helm(*command[1:3], CHART, *command[4:])
    assert owner(cluster) == ("other", second)
    cluster.helm("upgrade", "other", CHART, "--namespace", second, "--set", "operator.workers=2")
    assert cluster.kubectl.json("get", "ddpjob", "precious", "-n", first)["metadata"]["uid"] == uid


def test_a_second_release_is_refused_until_the_crd_is_relabelled(cluster):
    first, second = cluster.namespace(), cluster.namespace()
    cluster.install(first)
    cluster.uninstall(first)
    for tool, *arguments in readme_commands("kubectl annotate crd", NAME="other", NAMESPACE=second):
        assert tool == "kubectl"
        cluster.kubectl(*arguments)
    cluster.install(second, release="other")
    assert owner(cluster) == ("other", second)


def test_the_release_adopts_a_crd_that_kubectl_applied(cluster):
    namespace = cluster.namespace()
    cluster.install_crd()
    with pytest.raises(HelmError, match="exists and cannot be imported into the current release"):
        cluster.install(namespace)
    with pytest.raises(HelmError, match='conflict with "kubectl"'):
        cluster.install(namespace, {}, "--take-ownership")
    cluster.helm("uninstall", "ddpjob-operator", "--namespace", namespace, "--wait")
    cluster.install(namespace, {}, "--take-ownership", "--force-conflicts")
    assert owner(cluster) == ("ddpjob-operator", namespace)
    cluster.helm("upgrade", "ddpjob-operator", CHART, "--namespace", namespace, "--set", "operator.workers=2")


def test_a_crd_that_is_not_to_be_kept_goes_with_the_release(cluster):
    namespace = cluster.namespace()
    cluster.install(namespace, {"crds": {"keep": False}})
    cluster.uninstall(namespace)
    assert not cluster.exists("crd", CRD)


def test_an_upgrade_upgrades_the_crd_and_leaves_jobs_alone(cluster, tmp_path):
    namespace = cluster.namespace()
    cluster.install(namespace)
    uid = create_job(cluster, namespace)

    newer = tmp_path / "ddpjob-operator"
    shutil.copytree(CHART, newer)
    file = newer / "files" / "crd" / "ddpjob.yaml"
    crd = yaml.safe_load(file.read_text())
    crd["spec"]["names"]["categories"] = ["newer"]
    file.write_text(yaml.safe_dump(crd))
    cluster.helm("upgrade", "ddpjob-operator", newer, "--namespace", namespace)
    assert cluster.kubectl.json("get", "crd", CRD)["spec"]["names"]["categories"] == ["newer"]
    assert cluster.kubectl.json("get", "ddpjob", "precious", "-n", namespace)["metadata"]["uid"] == uid


def test_a_second_release_watches_other_namespaces(cluster):
    first, second = cluster.namespace(), cluster.namespace()
    cluster.install(first, {"watch": {"namespaces": [first]}})
    cluster.install(second, {"watch": {"namespaces": [second]}, "crds": {"enabled": False}}, release="second")
    cluster.uninstall(first)
    assert cluster.exists("role", "second-ddpjob-operator", "-n", second)
