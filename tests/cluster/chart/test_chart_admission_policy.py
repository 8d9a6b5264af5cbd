"""With `admissionPolicy.enabled` the operator's service account can touch only objects of DDPJobs, on a real API server."""

import json
import re
from functools import partial
from typing import Any

import pytest

import testbed
from ddpjob_operator.api import names
from support.chart_render import RELEASE
from testbed.kubectl import KubectlError

OTHER_JOB = "must name the same DDPJob"
#: Of two policies that refuse a request, the API server's answer names one.
NOT_OURS = f"The operator may touch only objects that have the label ddpjob.dev/job-uid|{OTHER_JOB}"
NOT_OWNED = f"must be owned by the DDPJob that its label ddpjob.dev/job-uid names|{OTHER_JOB}"
RELABELLED = "may not change labels or owner references"
CONTAINERS = "may not change the containers of a pod"
ACCOUNT = "The pods of a DDPJob may use only these service accounts: default, trainer"
POLICY = "must concern only pods of its own DDPJob"
SERVICE = "must be headless and must select only pods of its own DDPJob"
NO_JOB = "no params found"
SYSTEM = "may create nothing in the namespaces of Kubernetes itself"
FINALIZER = "may not add finalizers"
GRACE = "at most an hour between SIGTERM and SIGKILL"
HOST = "only in the namespaces that an administrator has listed in the chart's value admissionPolicy.hostAccess"
NOT_ASKED = "only as far as its DDPJob asks for it"
TOO_DEEP = "nested more than 20 levels deep"
PRIORITY = "may not have a priority class of the system"
NOT_FINISHED = "may delete only a finished DDPJob that has spec.ttlSecondsAfterFinished"


class Requests:
    """Requests of the operator's service account, as dry runs of the server, on objects that the fixture has made."""

    def __init__(self, cluster, namespace):
        self.kubectl, self.namespace, self.gang_api = cluster.kubectl, namespace, cluster.control_plane.gang_api
        self.operator = f"--as=system:serviceaccount:{namespace}:{RELEASE}"
        self.job_uid = ""
        self.uids = {}

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

    def create_job(self, spec):
        """Why the API server refuses a job of an administrator."""
        metadata = {"name": "new", "namespace": self.namespace}
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}
        try:
            self.kubectl("create", "-f", "-", "--dry-run=server", stdin=json.dumps(body))
        except KubectlError as error:
            return str(error)
        return ""

    def create_in(self, namespace, body, **owner):
        """As a thief of the token would, for a job that need not exist."""
        owners = [{**body["metadata"]["ownerReferences"][0], **owner}]
        labels = {names.LABEL_JOB_UID: owners[0]["uid"]}
        metadata = {**body["metadata"], "namespace": namespace, "ownerReferences": owners, "labels": labels}
        options = ("-f", "-", "--dry-run=server", self.operator)
        try:
            self.kubectl("create", *options, stdin=json.dumps({**body, "metadata": metadata}))
        except KubectlError as error:
            return str(error)
        return ""

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

    def container(self, **fields):
        """Of a pod of the job, one whose container asks for more."""
        return self.pod("new", containers=[{"name": "trainer", "image": "example.org/train:1", **fields}])

    def service(self, name, **spec):
        selector = {names.LABEL_JOB_UID: self.job_uid}
        spec = {"clusterIP": "None", "selector": selector, "ports": [{"port": 29500}], **spec}
        return {"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(name), "spec": spec}

    def group(self, name):
        """Of Kubernetes' own gang scheduling; the API server adds its finalizer."""
        spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
        return {"apiVersion": self.gang_api, "kind": "PodGroup", "metadata": self.metadata(name), "spec": spec}

    def policy(self, name, of=None):
        spec = {"podSelector": {"matchLabels": {names.LABEL_JOB_UID: of or self.job_uid}}, "policyTypes": ["Ingress"]}
        metadata = self.metadata(name)
        return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def applied(cluster, bodies):
    """Whether an administrator could create them."""
    try:
        cluster.kubectl.apply(bodies)
    except KubectlError:
        return False
    return True


def unexpected(answers):
    """The refusals, by row, that do not match what is expected; empty text is no refusal."""
    return {
        row: got
        for row, (got, expected) in enumerate(answers)
        if bool(got) != bool(expected) or not re.search(expected, got)
    }


@pytest.fixture(scope="module")
def _chart_control_plane():
    """Of its own, since it has PodGroups: with them an operator waits for gangs in the place of pods."""
    with testbed.ControlPlane(gang_scheduling=True) as control_plane:
        yield control_plane


@pytest.fixture
def requests(cluster):
    """A job that runs, two that have ended, of which one has a TTL, and a pod, a Service and a NetworkPolicy of somebody else."""
    namespace = cluster.namespace(restricted=False)
    policy = {"enabled": True, "serviceAccounts": ["default", "trainer"], "hostAccess": [namespace]}
    cluster.install(namespace, {"admissionPolicy": policy})
    cluster.wait_for_crd()
    requests = Requests(cluster, namespace)
    ttl = {"ttlSecondsAfterFinished": 60}
    devices = {"name": "rdma", "hostPath": {"path": "/dev/infiniband"}}
    rdma = {"name": "trainer", "securityContext": {"capabilities": {"add": ["SYS_RAWIO"]}}}
    host = {"template": {"spec": {"hostNetwork": True, "volumes": [devices], "containers": [rdma]}}}
    jobs: dict[str, tuple[dict[str, Any], str]] = {
        "running": (ttl, "Running"),
        "ended": (ttl, "Succeeded"),
        "kept": ({}, "Failed"),
        "rdma": (host, "Running"),
    }
    for name, (more, phase) in jobs.items():
        spec = {"trainer": {"recipe": "digits"}, **more}
        metadata = {"name": name, "namespace": namespace}
        cluster.kubectl.apply({"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec})
        status = json.dumps({"status": {"phase": phase}})
        cluster.kubectl("patch", "ddpjob", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
    for name in ("running", "rdma"):
        requests.uids[name] = cluster.kubectl.json("get", "ddpjob", name, "-n", namespace)["metadata"]["uid"]
    requests.job_uid = requests.uids["running"]
    cluster.kubectl("create", "serviceaccount", "trainer", "-n", namespace)
    cluster.kubectl("create", "serviceaccount", "powerful", "-n", namespace)
    testbed.wait_for(
        "the default service account", lambda: cluster.exists("serviceaccount", "default", "-n", namespace)
    )
    # The API server may not know the policy's parameters yet, which must concern nobody else.
    foreign = {"name": "foreign", "namespace": namespace, "labels": {"app": "web"}}
    cluster.kubectl.apply([{**of(""), "metadata": foreign} for of in (requests.pod, requests.service, requests.policy)])
    own = [requests.pod("own"), requests.service("own")]
    testbed.wait_for("the API server to know DDPJobs as parameters", lambda: applied(cluster, own))
    testbed.wait_for("the policy to be in force", lambda: requests.delete("pod", "foreign"))
    return requests


def test_the_policy_limits_the_operator_to_its_own_objects(requests):
    ask, pod, service = requests, requests.pod, requests.service
    own = {names.LABEL_JOB_UID: ask.job_uid}
    foreign_owner = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": ask.job_uid}]
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
        (ask.patch("pod", "own", metadata={"annotations": {"a": "b"}}), ""),
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
        (ask.create(ask.group("new")), ""),
        (ask.create(ask.policy("new")), ""),
        (ask.create(ask.policy("new"), labels={}), NOT_OURS),
        (ask.create(ask.policy("new", of="another-job")), POLICY),
        (ask.delete("networkpolicy", "foreign"), NOT_OURS),
        (ask.delete("ddpjob", "ended"), ""),
        (ask.delete("ddpjob", "running"), NOT_FINISHED),
        (ask.delete("ddpjob", "kept"), NOT_FINISHED),
    ]

    assert unexpected(answers) == {}
    ask.kubectl("delete", "pod", "foreign", "-n", ask.namespace, "--dry-run=server")  # an administrator still may


def test_the_policy_compares_what_the_operator_creates_with_the_jobs_of_the_namespace(requests, cluster):
    ask, pod, service, here = requests, requests.pod, requests.service, requests.namespace
    empty, elsewhere = cluster.namespace(restricted=False), cluster.namespace(restricted=False)
    job = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": {"command": ["true"]}}
    for namespace in ("kube-system", elsewhere):
        cluster.kubectl.apply({**job, "metadata": {"name": "theirs", "namespace": namespace}})
    for namespace in ("kube-system", empty, elsewhere):
        exists = partial(cluster.exists, "serviceaccount", "default", "-n", namespace)
        testbed.wait_for("the default service account", exists, seconds=240)
    invented = "11111111-2222-3333-4444-555555555555"
    rdma = {"name": "rdma", "uid": ask.uids["rdma"]}
    root, devices = ({"name": "h", "hostPath": {"path": path}} for path in ("/", "/dev/infiniband"))
    privileged = {"securityContext": {"privileged": True}}
    port = ask.container(ports=[{"containerPort": 80, "hostPort": 80}])
    process = pod("new", securityContext={"windowsOptions": {"hostProcess": True}}, hostNetwork=True)
    of_an_init_container = pod("new", initContainers=[{"name": "first", "image": "x", **privileged}])
    locks_memory = ask.container(securityContext={"capabilities": {"add": ["IPC_LOCK"]}})
    powerful = [
        ask.container(**privileged),
        of_an_init_container,
        ask.container(securityContext={"capabilities": {"add": ["SYS_RAWIO"]}}),
        port,
        process,
    ]
    second_owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt", "uid": "of-another-object"}

    def is_known(namespace: str) -> bool:
        return NO_JOB not in ask.create_in(namespace, pod("p"), uid=invented, name="none")

    for namespace in ("kube-system", elsewhere):
        testbed.wait_for(
            f"the API server to know the job of {namespace}",
            partial(is_known, namespace),
        )
    answers = [
        (ask.create_in(empty, pod("new"), uid=invented, name="none"), NO_JOB),
        (
            ask.create_in(empty, service("new", selector={names.LABEL_JOB_UID: invented}), uid=invented, name="none"),
            NO_JOB,
        ),
        (ask.create_in(elsewhere, pod("new"), uid=invented, name="none"), ""),  # what remains: see the chart's README
        (ask.create_in("kube-system", pod("new"), uid=invented, name="none"), SYSTEM),
        (ask.create_in(here, pod("new"), uid=invented), OTHER_JOB),
        (ask.create_in(here, pod("new"), name="ended"), OTHER_JOB),
        (ask.create_in(here, pod("new"), apiVersion="ddpjob.dev/v0"), NOT_OWNED),
        (ask.create(pod("new"), ownerReferences=[*pod("")["metadata"]["ownerReferences"], second_owner]), NOT_OWNED),
        (ask.create(pod("new"), finalizers=["example.org/stay"]), FINALIZER),
        (ask.create(pod("new"), finalizers=["kueue.x-k8s.io/managed"]), ""),
        (ask.create(pod("new"), finalizers=["kueue.x-k8s.io/stay"]), FINALIZER),
        (ask.patch("pod", "own", metadata={"finalizers": ["example.org/stay"]}), FINALIZER),
        (ask.create(pod("new", terminationGracePeriodSeconds=86_400)), GRACE),
        *((ask.create(pod("new", **{field: True})), NOT_ASKED) for field in ("hostNetwork", "hostPID", "hostIPC")),
        (ask.create(pod("new", volumes=[root])), NOT_ASKED),
        (ask.create_in(here, pod("new", hostNetwork=True, volumes=[devices]), **rdma), ""),
        (ask.create_in(here, pod("new", hostNetwork=True, volumes=[root]), **rdma), NOT_ASKED),
        (ask.create_in(here, pod("new", hostPID=True), **rdma), NOT_ASKED),
        (ask.create_in(elsewhere, pod("new", hostPID=True), uid=invented, name="none"), HOST),
        (ask.create_in(elsewhere, pod("new", volumes=[devices]), uid=invented, name="none"), HOST),
        *((ask.create_in(elsewhere, body, uid=invented, name="none"), HOST) for body in powerful),
        *((ask.create_in(here, body), NOT_ASKED) for body in powerful if body not in (port, process)),
        (ask.create_in(here, ask.container(securityContext={"capabilities": {"add": ["SYS_RAWIO"]}}), **rdma), ""),
        (ask.create_in(elsewhere, locks_memory, uid=invented, name="none"), ""),
        (ask.create(pod("new", priorityClassName="system-node-critical")), PRIORITY),
    ]
    assert unexpected(answers) == {}


def test_a_job_is_refused_if_it_is_nested_deeper_than_any_pod(requests):
    def refusal(depth, opening, closing):
        value = json.loads(opening * depth + "1" + closing * depth)
        return requests.create_job({"command": ["true"], "template": {"spec": {"x": value}}})

    for opening, closing in ('{"a":', "}"), ("[", "]"):
        assert refusal(17, opening, closing) == ""
        assert TOO_DEEP in refusal(18, opening, closing)
        assert TOO_DEEP in refusal(900, opening, closing)


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
