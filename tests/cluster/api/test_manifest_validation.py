"""The real API server refuses what cannot run, at apply, in words that name the field and the fix."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

import testbed
from testbed.kubectl import KubectlError

Change = Mapping[str, Any]

GOOD = {
    "apiVersion": "ddpjob.dev/v1alpha1",
    "kind": "DDPJob",
    "metadata": {"name": "job"},
    "spec": {"nodes": 2, "trainer": {"recipe": "digits"}},
}
COMMAND: Change = {"trainer": None, "command": ["torchrun", "train.py"]}
ALL_CODES_TWICE = [3, 3]

BAD_SPECS: list[tuple[str, Change, str]] = [
    ("neither program", {"trainer": None}, "exactly one of trainer"),
    ("both programs", {"command": ["python", "train.py"]}, "exactly one of trainer"),
    ("no nodes", {"nodes": 0}, "spec.nodes: Invalid value: 0: spec.nodes in body should be greater than or equal to 1"),
    ("too many nodes", {"nodes": 5000}, "less than or equal to 4096"),
    ("nodes as text", {"nodes": "two"}, "must be of type integer"),
    ("no processes", {"processesPerNode": 0}, "spec.processesPerNode in body should be greater than or equal to 1"),
    ("negative GPUs", {"gpusPerNode": -1}, "spec.gpusPerNode in body should be greater than or equal to 0"),
    ("more processes than GPUs", {"gpusPerNode": 4, "processesPerNode": 8}, "processesPerNode must equal gpusPerNode"),
    ("fewer processes than GPUs", {"gpusPerNode": 4, "processesPerNode": 2}, "processesPerNode must equal gpusPerNode"),
    ("GPU resource without a domain", {"gpuResource": "gpu"}, "spec.gpuResource in body should match"),
    ("GPUs twice", {"resources": {"limits": {"nvidia.com/gpu": 1}}}, "set the number of GPUs in gpusPerNode only"),
    (
        "GPUs twice, of another vendor",
        {"gpuResource": "amd.com/gpu", "resources": {"requests": {"amd.com/gpu": "1"}}},
        "set the number of GPUs in gpusPerNode only",
    ),
    ("empty command", {"trainer": None, "command": []}, "spec.command in body should have at least 1 items"),
    ("empty program", {"trainer": None, "command": ["", "x"]}, "it must be the program to start"),
    (
        "one python for many ranks",
        {"trainer": None, "command": ["python", "train.py"], "processesPerNode": 2},
        "start a launcher instead",
    ),
    (
        "one python for many GPUs, by path",
        {"trainer": None, "command": ["/opt/venv/bin/python3.11", "-u", "train.py"], "gpusPerNode": 4},
        "start a launcher instead",
    ),
    (
        "a launcher's module as an argument",
        {"trainer": None, "command": ["python", "train.py", "--x", "ddpjob_trainer"], "processesPerNode": 2},
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
        {"template": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "WORLD_SIZE", "value": "1"}]}]}}},
        "choose another name",
    ),
    ("restart policy", {"template": {"spec": {"restartPolicy": "Always"}}}, "Unsupported value"),
    ("no grace", {"template": {"spec": {"terminationGracePeriodSeconds": 0}}}, "greater than or equal to 1"),
    (
        "a container twice",
        {"template": {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "y"}]}}},
        "Duplicate value",
    ),
    (
        "an init container named like the main one",
        {"template": {"spec": {"initContainers": [{"name": "trainer", "image": "x"}]}}},
        "rename it",
    ),
    ("reserved label", {"template": {"metadata": {"labels": {"ddpjob.dev/rank": "7"}}}}, "choose another prefix"),
    ("unknown field", {"nodez": 2}, 'unknown field "spec.nodez"'),
    ("unknown field of the trainer", {"trainer": {"recipe": "digits", "lr": 1}}, 'unknown field "spec.trainer.lr"'),
    ("no name of a recipe", {"trainer": {"recipe": "my recipe"}}, "should match"),
    ("no recipe", {"trainer": {"epochs": 1}}, "spec.trainer.recipe: Required value"),
    ("negative restarts", {"restart": {"maxRestarts": -1}}, "should be greater than or equal to 0"),
    ("rule without codes", {"restart": {"rules": [{"exitCodes": [], "action": "Fail"}]}}, "at least 1 items"),
    ("rule for success", {"restart": {"rules": [{"exitCodes": [0], "action": "Fail"}]}}, "greater than or equal to 1"),
    ("rule for no exit code", {"restart": {"rules": [{"exitCodes": [256], "action": "Fail"}]}}, "less than or equal"),
    ("a code twice", {"restart": {"rules": [{"exitCodes": ALL_CODES_TWICE, "action": "Fail"}]}}, "Duplicate value"),
    (
        "a code in two rules",
        {"restart": {"rules": [{"exitCodes": [3], "action": "Fail"}, {"exitCodes": [4, 3], "action": "Ignore"}]}},
        "an exit code is listed in two rules",
    ),
    ("unknown action", {"restart": {"rules": [{"exitCodes": [3], "action": "Panic"}]}}, "supported values"),
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
]

BAD_NAMES = [
    ("too long for its children", "a" * 53, "longer than 52 characters"),
    ("begins with a digit", "1job", "must begin with a letter"),
    ("holds a dot", "my.job", "must begin with a letter and contain only"),
]

FORBIDDEN_EDITS: list[tuple[str, Change]] = [
    ("nodes", {"nodes": 3}),
    ("program", {"trainer": {"recipe": "digits", "epochs": 2}}),
    ("image", {"image": "other:1"}),
    ("environment", {"env": [{"name": "A", "value": "1"}]}),
    ("port", {"masterPort": 30000}),
    ("resources", {"resources": {"limits": {"cpu": "1"}}}),
    ("security profile", {"securityProfile": "baseline"}),
    ("edit together with a suspension", {"nodes": 3, "suspend": True}),
]

ALLOWED_EDITS: list[tuple[str, Change]] = [
    ("restarts", {"restart": {"maxRestarts": 7}}),
    ("deadlines", {"deadlines": {"activeSeconds": 60}}),
    ("suspension", {"suspend": True}),
    ("time to live", {"ttlSecondsAfterFinished": 60}),
]


def job(change: Change, name: str = "job") -> dict[str, Any]:
    made = copy.deepcopy(GOOD)
    made["metadata"] = {"name": name}
    spec: dict[str, Any] = {**GOOD["spec"], **change}  # type: ignore[dict-item]  # a plain JSON tree
    made["spec"] = {key: value for key, value in spec.items() if value is not None}
    return made


def create(cluster: testbed.ControlPlane, namespace: str, manifest: Change) -> str:
    return cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


@pytest.mark.parametrize(("change", "words"), [pytest.param(c, w, id=name) for name, c, w in BAD_SPECS])
def test_a_bad_spec_is_refused_in_words(ddpjob_crd: testbed.ControlPlane, change: Change, words: str) -> None:
    with pytest.raises(KubectlError) as refused:
        create(ddpjob_crd, "default", job(change))

    assert words in str(refused.value)


@pytest.mark.parametrize(("name", "words"), [pytest.param(n, w, id=what) for what, n, w in BAD_NAMES])
def test_a_bad_name_is_refused_in_words(ddpjob_crd: testbed.ControlPlane, name: str, words: str) -> None:
    with pytest.raises(KubectlError) as refused:
        create(ddpjob_crd, "default", job({}, name))

    assert words in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="digits"),
        pytest.param(COMMAND, id="torchrun"),
        pytest.param(COMMAND | {"processesPerNode": 2}, id="torchrun with two processes"),
        pytest.param(
            {"trainer": None, "command": ["python", "-m", "torch.distributed.run", "t.py"], "processesPerNode": 2},
            id="torchrun as a module",
        ),
        pytest.param({"trainer": None, "command": ["python", "train.py"], "gpusPerNode": 1}, id="python with one GPU"),
        pytest.param({"trainer": None, "command": ["./python-launcher"], "processesPerNode": 2}, id="own launcher"),
        pytest.param({"gpusPerNode": 4, "processesPerNode": 4}, id="a process for each GPU"),
        pytest.param(
            {"template": {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "trainer", "stdin": True}]}}},
            id="overlay with fields of a pod",
        ),
    ],
)
def test_a_good_spec_is_taken(ddpjob_crd: testbed.ControlPlane, namespace: str, change: Change) -> None:
    assert "created" in create(ddpjob_crd, namespace, job(change))


def edit(cluster: testbed.ControlPlane, namespace: str, change: Change) -> str:
    return cluster.kubectl(
        "patch", "ddpjob", "job", "-n", namespace, "--type=merge", "-p", json.dumps({"spec": dict(change)})
    )


@pytest.mark.parametrize("change", [pytest.param(c, id=name) for name, c in FORBIDDEN_EDITS])
def test_shape_and_program_cannot_change_while_running(
    ddpjob_crd: testbed.ControlPlane, namespace: str, change: Change
) -> None:
    create(ddpjob_crd, namespace, job({}))

    with pytest.raises(KubectlError, match="only while the job is suspended"):
        edit(ddpjob_crd, namespace, change)


@pytest.mark.parametrize("change", [pytest.param(c, id=name) for name, c in FORBIDDEN_EDITS])
def test_shape_and_program_can_change_while_suspended(
    ddpjob_crd: testbed.ControlPlane, namespace: str, change: Change
) -> None:
    create(ddpjob_crd, namespace, job({"suspend": True}))

    assert "patched" in edit(ddpjob_crd, namespace, change)


@pytest.mark.parametrize("change", [pytest.param(c, id=name) for name, c in ALLOWED_EDITS])
def test_what_is_no_shape_can_change_at_any_time(
    ddpjob_crd: testbed.ControlPlane, namespace: str, change: Change
) -> None:
    create(ddpjob_crd, namespace, job({}))

    assert "patched" in edit(ddpjob_crd, namespace, change)


def test_an_attempt_is_never_taken_back(ddpjob_crd: testbed.ControlPlane, namespace: str) -> None:
    create(ddpjob_crd, namespace, job({}))
    status = ["patch", "ddpjob", "job", "-n", namespace, "--subresource=status", "--type=merge", "-p"]
    ddpjob_crd.kubectl(*status, '{"status":{"attempt":3}}')

    with pytest.raises(KubectlError, match="must not decrease"):
        ddpjob_crd.kubectl(*status, '{"status":{"attempt":2}}')
