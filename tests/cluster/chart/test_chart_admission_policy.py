"""With `admissionPolicy.enabled` the operator's service account can touch only objects of DDPJobs, on a real API server."""

import json

import pytest

import testbed
from ddpjob_operator.api import names
from support.chart_render import RELEASE
from testbed.kubectl import KubectlError

NOT_OURS = "The operator may touch only objects that have the label ddpjob.dev/job-uid."
NOT_OWNED = "must be owned by the DDPJob that its label ddpjob.dev/job-uid names"
RELABELLED = "may not change labels or owner references"
CONTAINERS = "may not change the containers of a pod"
ACCOUNT = "The pods of a DDPJob may use only these service accounts: default, trainer."
POLICY = "must concern only pods of its own DDPJob"
SERVICE = "must be headless and must select only pods of its own DDPJob"
NOT_FINISHED = "may delete only a finished DDPJob that has spec.ttlSecondsAfterFinished"


class Requests:
    """Requests of the operator's service account, as dry runs of the server, on objects that the fixture has made."""

    def __init__(self, cluster, namespace):
        self.kubectl, self.namespace = cluster.kubectl, namespace
        self.operator = f"--as=system:serviceaccount:{namespace}:{RELEASE}"
        self.job_uid = ""

    def refusal(self, verb, *arguments, body=None):
        """Why the API server refuses the request; empty if it does not."""
        options = [self.operator] if "--raw" in arguments else ["-n", self.namespace, "--dry-run=server", self.operator]
        try:
            self.kubectl(verb, *arguments, *options, stdin=json.dumps(body) if body else None)
        except KubectlError as error:
            return str(error)
        return ""

    def create(self, body, **metadata):
        return self.refusal("create", "-f", "-", body={**body, "metadata": {**body["metadata"], **metadata}})

    def patch(self, kind, name, **patch):
        return self.refusal("patch", kind, name, "--type=strategic", f"--patch={json.dumps(patch)}")

    def delete(self, kind, name):
        return self.refusal("delete", kind, name, "--wait=false")

    def delete_pods(self, selector):
        path = f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All&labelSelector={selector}"
        return self.refusal("delete", "--raw", path)

    def metadata(self, name):
        """Metadata of an object of the job."""
        owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "running", "uid": self.job_uid}
        labels = {names.LABEL_JOB_UID: self.job_uid}
        return {"name": name, "namespace": self.namespace, "labels": labels, "ownerReferences": [owner]}

    def pod(self, name, **spec):
        container = {"name": "trainer", "image": "example.org/train:1"}
        spec = {"containers": [container], "activeDeadlineSeconds": 100, **spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": self.metadata(name), "spec": spec}

    def spare(self, name):
        """A spare pod of the job."""
        body = self.pod(name)
        body["metadata"]["labels"] |= {names.LABEL_SPARE: "true", names.LABEL_RANK: "2", names.LABEL_ATTEMPT: "1"}
        return body

    def service(self, name, **spec):
        selector = {names.LABEL_JOB_UID: self.job_uid}
        spec = {"clusterIP": "None", "selector": selector, "ports": [{"port": 29500}], **spec}
        return {"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(name), "spec": spec}

    def policy(self, name, of=None):
        spec = {"podSelector": {"matchLabels": {names.LABEL_JOB_UID: of or self.job_uid}}, "policyTypes": ["Ingress"]}
        metadata = self.metadata(name)
        return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


@pytest.fixture
def requests(cluster):
    """A job that runs, two that have ended, of which one has a TTL, and a pod, a Service and a NetworkPolicy of somebody else."""
    namespace = cluster.namespace(restricted=False)
    cluster.install(namespace, {"admissionPolicy": {"enabled": True, "serviceAccounts": ["default", "trainer"]}})
    cluster.wait_for_crd()
    requests = Requests(cluster, namespace)
    ttl = {"ttlSecondsAfterFinished": 60}
    for name, limit, phase in (("running", ttl, "Running"), ("ended", ttl, "Succeeded"), ("kept", {}, "Failed")):
        spec = {"trainer": {"recipe": "digits"}, **limit}
        metadata = {"name": name, "namespace": namespace}
        cluster.kubectl.apply({"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec})
        status = json.dumps({"status": {"phase": phase}})
        cluster.kubectl("patch", "ddpjob", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
    requests.job_uid = cluster.kubectl.json("get", "ddpjob", "running", "-n", namespace)["metadata"]["uid"]
    cluster.kubectl("create", "serviceaccount", "trainer", "-n", namespace)
    cluster.kubectl("create", "serviceaccount", "powerful", "-n", namespace)
    testbed.wait_for(
        "the default service account", lambda: cluster.exists("serviceaccount", "default", "-n", namespace)
    )
    foreign = {"name": "foreign", "namespace": namespace, "labels": {"app": "web"}}
    cluster.kubectl.apply(
        [
            requests.pod("own"),
            requests.spare("spare"),
            requests.service("own"),
            {**requests.pod(""), "metadata": foreign},
            {**requests.service(""), "metadata": foreign},
            {**requests.policy(""), "metadata": foreign},
        ]
    )
    testbed.wait_for("the policy to be in force", lambda: requests.delete("pod", "foreign"))
    return requests


def test_the_policy_limits_the_operator_to_its_own_objects(requests):
    ask, pod, service = requests, requests.pod, requests.service
    own = {names.LABEL_JOB_UID: ask.job_uid}
    foreign_owner = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": ask.job_uid}]
    takes_over = {names.LABEL_SPARE: None, names.LABEL_RANK: "1", names.LABEL_REPLACEMENT: "1"}
    image = {"spec": {"containers": [{"name": "trainer", "image": "example.org/other:1"}]}}
    answers = [
        (ask.create(pod("new")), ""),
        (ask.create(pod("new", serviceAccountName="trainer")), ""),
        (ask.create(pod("new", serviceAccountName="powerful")), ACCOUNT),
        (ask.create(pod("new"), labels={"app": "web"}), NOT_OURS),
        (ask.create(pod("new"), ownerReferences=[]), NOT_OWNED),
        (ask.create(pod("new"), ownerReferences=foreign_owner), NOT_OWNED),
        (ask.create(pod("new"), labels={names.LABEL_JOB_UID: "of-another-job"}), NOT_OWNED),
        (ask.patch("pod", "own", spec={"activeDeadlineSeconds": 1}), ""),
        (ask.patch("pod", "own", **image), CONTAINERS),
        (ask.patch("pod", "own", metadata={"labels": {names.LABEL_RANK: "7"}}), RELABELLED),
        (ask.patch("pod", "own", metadata={"ownerReferences": None}), RELABELLED),
        (ask.patch("pod", "spare", metadata={"labels": takes_over, "annotations": {"a": "b"}}), ""),
        (ask.patch("pod", "spare", metadata={"labels": takes_over | {names.LABEL_ATTEMPT: "2"}}), RELABELLED),
        (ask.patch("pod", "spare", metadata={"labels": takes_over | {"app": "web"}}), RELABELLED),
        (ask.patch("pod", "spare", metadata={"labels": {names.LABEL_RANK: "1"}}), RELABELLED),
        (ask.patch("pod", "own", metadata={"labels": takes_over}), RELABELLED),
        (ask.patch("pod", "foreign", spec={"activeDeadlineSeconds": 1}), NOT_OURS),
        (ask.patch("pod", "foreign", metadata={"labels": own}), NOT_OURS),
        (ask.delete("pod", "own"), ""),
        (ask.delete("pod", "foreign"), NOT_OURS),
        (ask.delete_pods(f"{names.LABEL_JOB_UID}%3D{ask.job_uid}"), ""),
        (ask.delete_pods("app%3Dweb"), NOT_OURS),
        (ask.create(service("new")), ""),
        (ask.create(service("new"), labels={}), NOT_OURS),
        (ask.create(service("new", selector={"app": "web"})), SERVICE),
        (ask.create(service("new", clusterIP=None)), SERVICE),
        (ask.patch("service", "own", spec={"selector": {names.LABEL_ATTEMPT: "2"}}), ""),
        (ask.patch("service", "own", spec={"selector": {names.LABEL_JOB_UID: "of-another-job"}}), SERVICE),
        (ask.patch("service", "own", spec={"externalIPs": ["192.0.2.1"]}), SERVICE),
        (ask.patch("service", "foreign", spec={"selector": {"app": "mine"}}), NOT_OURS),
        (ask.create(ask.policy("new")), ""),
        (ask.create(ask.policy("new"), labels={}), NOT_OURS),
        (ask.create(ask.policy("new", of="another-job")), POLICY),
        (ask.delete("networkpolicy", "foreign"), NOT_OURS),
        (ask.delete("ddpjob", "ended"), ""),
        (ask.delete("ddpjob", "running"), NOT_FINISHED),
        (ask.delete("ddpjob", "kept"), NOT_FINISHED),
    ]

    wrong = {
        row: got for row, (got, expected) in enumerate(answers) if expected not in got or bool(got) != bool(expected)
    }
    assert wrong == {}
    ask.kubectl("delete", "pod", "foreign", "-n", ask.namespace, "--dry-run=server")  # an administrator still may


def test_whoever_applies_a_job_of_which_each_pod_would_train_alone_is_warned(requests):
    def warning(command):
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "alone", "namespace": requests.namespace},
            "spec": {"nodes": 2, "command": command},
        }
        try:
            requests.kubectl("create", "-f", "-", "--dry-run=server", "--warnings-as-errors", stdin=json.dumps(body))
        except KubectlError as error:
            return str(error)
        return ""

    for command in (
        ["torchrun", "--standalone", "t.py"],
        ["bash", "-c", "exec torchrun --nnodes=1 t.py"],
        ["python", "-m", "torch.distributed.run", "--nnodes", "1", "t.py"],
    ):
        assert "lets each pod train alone" in warning(command), command
    for command in (["torchrun", "t.py"], ["torchrun", "--nnodes=16", "t.py"], ["python", "t.py", "--standalone"]):
        assert warning(command) == "", command
