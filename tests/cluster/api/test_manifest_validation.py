"""The real API server refuses a DDPJob that cannot run when it is applied, with a message that names the field and the fix."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import testbed
from testbed.kubectl import KubectlError

Change = Mapping[str, Any]

GOOD = {
    "apiVersion": "ddpjob.dev/v1beta1",
    "kind": "DDPJob",
    "metadata": {"name": "job"},
    "spec": {"nodes": 2, "trainer": {"recipe": "digits"}},
}
COMMAND: Change = {"trainer": None, "command": ["torchrun", "train.py"]}


def python(*arguments: str, **spec: Any) -> Change:
    return {"trainer": None, "command": ["python", *arguments], **spec}


def template(**pod_spec: Any) -> Change:
    return {"template": {"spec": pod_spec}}


def rules(*rules: Change) -> Change:
    return {"restart": {"rules": rules}}


CLAIMS = template(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpus"}])

#: A change of the good manifest, and a part of the message that refuses it; empty if it is accepted.
SPECS: list[tuple[str, Change, str]] = [
    ("digits", {}, ""),
    ("torchrun", COMMAND, ""),
    ("torchrun with two processes", {**COMMAND, "processesPerNode": 2}, ""),
    ("torchrun as a module", python("-m", "torch.distributed.run", "t.py", processesPerNode=2), ""),
    ("our launcher", python("-m", "ddpjob.launch", "t.py", processesPerNode=2), ""),
    ("python with one GPU", python("train.py", gpusPerNode=1), ""),
    ("a launcher of the user", {"trainer": None, "command": ["./python-launcher"], "processesPerNode": 2}, ""),
    ("a process for each GPU", {"gpusPerNode": 4, "processesPerNode": 4}, ""),
    ("pod fields", template(nodeSelector={"a": "b"}, containers=[{"name": "trainer", "stdin": True}]), ""),
    ("scheduling", {"scheduling": {"queueName": "team-a", "topology": {"key": "topology.kubernetes.io/rack"}}}, ""),
    (
        "queue without a gang",
        {"scheduling": {"queueName": "a", "gang": "none"}},
        "remove queueName, or set gang to auto",
    ),
    ("topology without a label", {"scheduling": {"topology": {"key": "a rack"}}}, "scheduling.topology.key"),
    ("name too long for its children", {"name": "a" * 53}, "longer than 52 characters"),
    ("name that begins with a digit", {"name": "1job"}, "must begin with a letter"),
    ("name with a dot", {"name": "my.job"}, "must begin with a letter and contain only"),
    ("neither program", {"trainer": None}, "exactly one of trainer"),
    ("both programs", {"command": ["python", "train.py"]}, "exactly one of trainer"),
    ("object store and cache", {"checkpoint": {"uri": "s3://bucket/runs"}, "cache": {"volume": {"emptyDir": {}}}}, ""),
    ("no place for checkpoints", {"checkpoint": {"everySteps": 5}}, "set exactly one of volume"),
    (
        "two places for checkpoints",
        {"checkpoint": {"uri": "s3://bucket", "volume": {"emptyDir": {}}}},
        "set exactly one of volume",
    ),
    (
        "checkpoints in an unknown store",
        {"checkpoint": {"uri": "ftp://host/x"}},
        "spec.checkpoint.uri in body should match",
    ),
    ("no nodes", {"nodes": 0}, "spec.nodes: Invalid value: 0: spec.nodes in body should be greater than or equal to 1"),
    ("too many nodes", {"nodes": 5000}, "less than or equal to 4096"),
    ("nodes as text", {"nodes": "two"}, "must be of type integer"),
    ("no processes", {"processesPerNode": 0}, "spec.processesPerNode in body should be greater than or equal to 1"),
    ("negative GPUs", {"gpusPerNode": -1}, "spec.gpusPerNode in body should be greater than or equal to 0"),
    ("more processes than GPUs", {"gpusPerNode": 4, "processesPerNode": 8}, "processesPerNode must equal gpusPerNode"),
    ("fewer processes than GPUs", {"gpusPerNode": 4, "processesPerNode": 2}, "processesPerNode must equal gpusPerNode"),
    ("GPU resource without a domain", {"gpuResource": "gpu"}, "spec.gpuResource in body should match"),
    ("two MIG slices", {"gpusPerNode": 2, "gpuResource": "nvidia.com/mig-1g.10gb"}, "each pod can use one only"),
    ("two time-sliced GPUs", {"gpusPerNode": 2, "gpuResource": "nvidia.com/gpu.shared"}, "each pod can use one only"),
    ("GPUs twice", {"resources": {"limits": {"nvidia.com/gpu": 1}}}, "set the number of GPUs in gpusPerNode only"),
    (
        "GPUs twice, of another vendor",
        {"gpuResource": "amd.com/gpu", "resources": {"requests": {"amd.com/gpu": "1"}}},
        "set the number of GPUs in gpusPerNode only",
    ),
    ("empty command", {"trainer": None, "command": []}, "spec.command in body should have at least 1 items"),
    ("empty program", {"trainer": None, "command": ["", "x"]}, "it must be the program to start"),
    ("one python for many ranks", python("train.py", processesPerNode=2), "start a launcher instead"),
    (
        "one python for many GPUs, by path",
        {"trainer": None, "command": ["/opt/venv/bin/python3.11", "-u", "train.py"], "gpusPerNode": 4},
        "start a launcher instead",
    ),
    (
        "a launcher's module as an argument",
        python("t.py", "ddpjob_trainer", processesPerNode=2),
        "start a launcher instead",
    ),
    ("empty image", {"image": ""}, "spec.image in body should be at least 1 chars long"),
    ("image with a space", {"image": "my image"}, "spec.image in body should match"),
    ("port of root", {"masterPort": 80}, "spec.masterPort in body should be greater than or equal to 1024"),
    ("port beyond all", {"masterPort": 70000}, "spec.masterPort in body should be less than or equal to 65535"),
    ("reserved variable", {"env": [{"name": "RANK", "value": "0"}]}, "the operator sets this variable for every rank"),
    ("reserved variable of torchrun", {"env": [{"name": "PET_NNODES", "value": "1"}]}, "choose another name"),
    ("the same variable twice", {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}, "Duplicate value"),
    ("variable without a name", {"env": [{"name": "", "value": "1"}]}, "should be at least 1 chars long"),
    ("variable with two values", {"env": [{"name": "A", "value": "1", "valueFrom": {}}]}, "not both"),
    (
        "reserved variable in the template",
        template(containers=[{"name": "trainer", "env": [{"name": "WORLD_SIZE", "value": "1"}]}]),
        "choose another name",
    ),
    ("restart policy", template(restartPolicy="Always"), "Unsupported value"),
    (
        "restart policy of the main container",
        template(containers=[{"name": "trainer", "restartPolicy": "OnFailure"}]),
        "a rank that the kubelet restarts alone cannot join the others",
    ),
    (
        "restart rules of the main container",
        template(containers=[{"name": "trainer", "restartPolicyRules": [{"action": "Restart"}]}]),
        "restartPolicyRules of its own",
    ),
    (
        "settings of a container with another name",
        template(containers=[{"name": "main", "tty": True}]),
        "must be trainer",
    ),
    ("an empty image", template(containers=[{"name": "main", "image": ""}]), "must be trainer"),
    ("a container beside", template(containers=[{"name": "trainer", "tty": True}, {"name": "a", "image": "a"}]), ""),
    ("an init container without an image", template(initContainers=[{"name": "a"}]), "belong to trainer in containers"),
    ("claims of devices", CLAIMS, "set processesPerNode to the number of processes"),
    ("claims of devices with processes", {**CLAIMS, **COMMAND, "processesPerNode": 8}, ""),
    ("claims of devices next to GPUs", {**CLAIMS, **COMMAND, "gpusPerNode": 8}, ""),
    ("a program of 32 KiB", python("-c", "#" * 32768), ""),
    ("a program that is too long", python("-c", "#" * 32769), "may not be more than 32768"),
    ("no grace", template(terminationGracePeriodSeconds=0), "greater than or equal to 1"),
    ("a container twice", template(containers=[{"name": "a", "image": image} for image in "xy"]), "Duplicate value"),
    (
        "an init container with the main one's name",
        template(initContainers=[{"name": "trainer", "image": "x"}]),
        "rename it",
    ),
    ("reserved label", {"template": {"metadata": {"labels": {"ddpjob.dev/rank": "7"}}}}, "choose another prefix"),
    ("unknown field", {"nodez": 2}, 'unknown field "spec.nodez"'),
    ("unknown field of the trainer", {"trainer": {"recipe": "digits", "lr": 1}}, 'unknown field "spec.trainer.lr"'),
    ("no name of a recipe", {"trainer": {"recipe": "my recipe"}}, "should match"),
    ("steps to profile", {"trainer": {"recipe": "digits", "profileSteps": [100, 110]}}, ""),
    (
        "one step to profile",
        {"trainer": {"recipe": "digits", "profileSteps": [100]}},
        "profileSteps must hold two steps, the second one greater by at most 100",
    ),
    (
        "too many steps to profile",
        {"trainer": {"recipe": "digits", "profileSteps": [0, 101]}},
        "the second one greater by at most 100",
    ),
    ("no recipe", {"trainer": {"epochs": 1}}, "spec.trainer.recipe: Required value"),
    ("negative restarts", {"restart": {"maxRestarts": -1}}, "should be greater than or equal to 0"),
    ("rule without codes", rules({"exitCodes": [], "action": "Fail"}), "at least 1 items"),
    ("rule for success", rules({"exitCodes": [0], "action": "Fail"}), "greater than or equal to 1"),
    ("rule for no exit code", rules({"exitCodes": [256], "action": "Fail"}), "less than or equal"),
    ("a code twice", rules({"exitCodes": [3, 3], "action": "Fail"}), "Duplicate value"),
    (
        "a code in two rules",
        rules({"exitCodes": [3], "action": "Fail"}, {"exitCodes": [4, 3], "action": "Ignore"}),
        "an exit code is listed in two rules",
    ),
    ("unknown action", rules({"exitCodes": [3], "action": "Panic"}), "supported values"),
    ("deadline of nothing", {"deadlines": {"activeSeconds": 0}}, "greater than or equal to 1"),
    ("negative deadline", {"deadlines": {"startSeconds": -5}}, "greater than or equal to 1"),
    ("negative time to live", {"ttlSecondsAfterFinished": -1}, "greater than or equal to 0"),
    ("unknown security profile", {"securityProfile": "privileged"}, "supported values"),
    ("a volume of nothing", {"data": {"volume": {}}}, "should have at least 1 properties"),
    ("data without a volume", {"data": {}}, "spec.data.volume: Required value"),
    (
        "checkpoint interval for a program that is not ours",
        {**COMMAND, "checkpoint": {"volume": {"emptyDir": {}}, "everySteps": 10}},
        "checkpoint.everySteps applies to the built-in trainer",
    ),
    (
        "checkpoint interval twice",
        {
            "trainer": {"recipe": "digits", "checkpointEverySteps": 5},
            "checkpoint": {"volume": {"emptyDir": {}}, "everySteps": 10},
        },
        "set one of them",
    ),
    ("spare pods, which have no effect", {**COMMAND, "restart": {"spares": 8}}, ""),
    ("rank in another variable", {"env": [{"name": "A", "value": "$(RANK)"}]}, ""),
    ("least number of nodes", {"nodes": 3, "minNodes": 2}, ""),
    ("least number of nodes above their number", {"nodes": 2, "minNodes": 3}, "nodes is less than minNodes"),
    (
        "batch size that depends on the number of nodes",
        {"nodes": 2, "minNodes": 1, "trainer": {"recipe": "digits", "perProcessBatchSize": 8}},
        "set globalBatchSize instead",
    ),
]

#: An edit of a job, and whether the API server accepts it while the job runs; it accepts each while the job is suspended.
EDITS: list[tuple[str, Change, bool]] = [
    ("nodes", {"nodes": 3}, True),
    ("nodes and program", {"nodes": 3, "image": "other:1"}, False),
    ("program", {"trainer": {"recipe": "digits", "epochs": 2}}, False),
    ("image", {"image": "other:1"}, False),
    ("environment", {"env": [{"name": "A", "value": "1"}]}, False),
    ("port", {"masterPort": 30000}, False),
    ("resources", {"resources": {"limits": {"cpu": "1"}}}, False),
    ("security profile", {"securityProfile": "baseline"}, False),
    ("claims in a job of a release without the rule for new ones", CLAIMS, False),
    ("queue", {"scheduling": {"queueName": "team-b"}}, False),
    ("edit together with a suspension", {"image": "other:1", "suspend": True}, False),
    ("least number of nodes", {"minNodes": 1}, True),
    ("restarts", {"restart": {"maxRestarts": 7}}, True),
    ("deadlines", {"deadlines": {"activeSeconds": 60}}, True),
    ("suspension", {"suspend": True}, True),
    ("time to live", {"ttlSecondsAfterFinished": 60}, True),
]


def create(cluster: testbed.ControlPlane, change: Change, *options: str) -> str:
    """Create the good manifest with this change; gives kubectl's answer, also where the API server refuses it."""
    spec: dict[str, Any] = {**GOOD["spec"], **change}  # type: ignore[dict-item]  # a plain JSON tree
    metadata = {"name": spec.pop("name", "job")}
    manifest = {**GOOD, "metadata": metadata, "spec": {key: value for key, value in spec.items() if value is not None}}
    return answer(cluster, "create", *options, "-f", "-", stdin=json.dumps(manifest))


def answer(cluster: testbed.ControlPlane, *arguments: str, stdin: str | None = None) -> str:
    try:
        return cluster.kubectl(*arguments, stdin=stdin)
    except KubectlError as error:
        return str(error)


@pytest.mark.parametrize(("change", "message"), [pytest.param(c, m, id=name) for name, c, m in SPECS])
def test_a_bad_spec_is_refused_with_its_reason(ddpjob_crd: testbed.ControlPlane, change: Change, message: str) -> None:
    assert (message or "created (server dry run)") in create(ddpjob_crd, change, "--dry-run=server")


@pytest.fixture(scope="module")
def jobs(ddpjob_crd: testbed.ControlPlane) -> Iterator[Sequence[str]]:
    """The names of a job that runs and of one that is suspended."""
    for name, suspend in (("running", False), ("suspended", True)):
        assert "created" in create(ddpjob_crd, {"name": name, "suspend": suspend})
    yield ("running", "suspended")
    ddpjob_crd.kubectl("delete", "ddpjob", "running", "suspended")


@pytest.mark.parametrize(("change", "while_running"), [pytest.param(c, w, id=name) for name, c, w in EDITS])
def test_shape_and_program_can_change_only_while_the_job_is_suspended(
    ddpjob_crd: testbed.ControlPlane, jobs: Sequence[str], change: Change, while_running: bool
) -> None:
    patch = ("--type=merge", "--dry-run=server", "-p", json.dumps({"spec": dict(change)}))
    of_running, of_suspended = (answer(ddpjob_crd, "patch", "ddpjob", name, *patch) for name in jobs)
    assert ("patched" if while_running else "only while the job is suspended") in of_running
    assert "patched" in of_suspended


def test_the_attempt_never_decreases(ddpjob_crd: testbed.ControlPlane, bare_namespace: str) -> None:
    create(ddpjob_crd, {}, "-n", bare_namespace)
    status = ["patch", "ddpjob", "job", "-n", bare_namespace, "--subresource=status", "--type=merge", "-p"]
    ddpjob_crd.kubectl(*status, '{"status":{"attempt":3}}')
    with pytest.raises(KubectlError, match="must not decrease"):
        ddpjob_crd.kubectl(*status, '{"status":{"attempt":2}}')
