"""This project's operator as the chart installs it, but for the Deployment: its process is started by hand."""

from __future__ import annotations

from pathlib import Path

import yaml

import testbed
from support import REPOSITORY
from testbed.helm import Helm

MANIFESTS = REPOSITORY / "manifests"
CHART = REPOSITORY / "charts" / "ddpjob-operator"
NAMESPACE = "ddpjob-system"
NAME = "ddpjob-operator"
#: What the Deployment's command line has, too.
LEASE = ("--lease", f"{NAMESPACE}/{NAME}")


def install(control_plane: testbed.ControlPlane, *, scheduling_provider: str = "none") -> Path:
    """Apply the CRD and the rights; gives a kubeconfig of the operator's ServiceAccount.

    A token rather than the administrator's certificate: that is what a pod has, and the API server verifies a certificate
    again for each request (7 % of its CPU time in a storm).
    """
    kubectl = control_plane.kubectl
    kubectl("apply", "--server-side", "-f", str(MANIFESTS / "crd" / "ddpjob.yaml"))
    control_plane.wait_served("ddpjobs.ddpjob.dev")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    values = {"scheduling": {"provider": scheduling_provider}}
    documents = yaml.safe_load_all(Helm()("template", NAME, CHART, "--namespace", NAMESPACE, values=values))
    rights = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    kubectl.apply([document for document in documents if document and document["kind"] in rights])
    return control_plane.kubeconfig_of_account(NAMESPACE, NAME)
