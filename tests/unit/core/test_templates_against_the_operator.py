"""A template says something about what the operator sets as well: neither loses what is not in contradiction."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import MAIN_CONTAINER
from ddpjob_operator.core.render.placeholders import create_placeholder
from ddpjob_operator.core.render.pods import PodManifest, create_pod
from ddpjob_operator.scheduling.discovery import CANDIDATES
from support.builders import job, program

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize("affinity", [{"nodeAffinity": {PREFERRED: [{"weight": 1}]}}, {"podAffinity": {}}, None, {}])
def test_nodes_are_avoided_next_to_the_preferences_of_the_template(affinity: Any) -> None:
    of = program(nodes=2, template={"spec": {"affinity": affinity}})
    found = create_pod(of, of.spec, "image", 0, avoided=("bad-node",)).body["spec"]["affinity"]
    terms = found["nodeAffinity"][PREFERRED]
    own = ((affinity or {}).get("nodeAffinity") or {}).get(PREFERRED, [])
    assert terms[:-1] == own
    assert terms[-1]["preference"]["matchFields"][0]["values"] == ["bad-node"]


ON_THE_HOST: dict[str, Any] = {"nodes": 2, "restart": {"inPlace": True}}
#: What the API server does not store as null, since the CRD declares it.
DECLARED = {"containers", "initContainers", "restartPolicy", "terminationGracePeriodSeconds", "name", "env"}


def nulls() -> list[dict[str, Any]]:
    """Templates that set one field of what the operator renders to null."""
    of = job(template={"spec": {"hostNetwork": True}}, gpusPerNode=1, **ON_THE_HOST)
    spec = create_pod(of, of.spec, "image", 0, avoided=("bad",)).body["spec"]
    (main,) = spec["containers"]
    of_pod = [{field: None} for field in spec if field not in DECLARED]
    of_main = [{"containers": [{"name": MAIN_CONTAINER, field: None}]} for field in main if field not in DECLARED]
    return [*of_pod, *of_main]


#: The API server stores what it does not know, and refuses the pod.
MALFORMED: list[dict[str, Any]] = [
    {"tolerations": [{"key": ["gpu"]}]},
    {"containers": [{"name": MAIN_CONTAINER, "ports": 1}]},
    {"containers": [{"name": MAIN_CONTAINER, "ports": [{"containerPort": ["x"]}]}]},
]


@pytest.mark.parametrize("template", [*nulls(), *MALFORMED], ids=str)
def test_a_field_that_the_template_sets_to_null_or_to_another_type_is_no_defect(template: dict[str, Any]) -> None:
    of = job(template={"spec": {"hostNetwork": True, **template}}, gpusPerNode=1, **ON_THE_HOST)
    assert of.spec is not None
    for candidate in CANDIDATES:
        manifest = PodManifest(job=of, spec=of.spec, image="image", rank=0, avoided=("bad",), provider=candidate.newest)
        manifest.render()
        create_placeholder(replace(manifest, rank=1)).manifest.render()


OURS: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
ADDED = {"add": ["IPC_LOCK"]}
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


def rendered(**template: Any) -> dict[str, Any]:
    of = program(template={"spec": template})
    return dict(create_pod(of, of.spec, "image", 0).body["spec"])


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ({"privileged": True}, {"privileged": True}),
        ({"privileged": False}, {"privileged": False, **OURS}),
        ({"capabilities": ADDED}, {**OURS, "capabilities": {"drop": ["ALL"], **ADDED}}),
        ({"capabilities": {"add": ["CAP_SYS_ADMIN"]}}, {"capabilities": {"drop": ["ALL"], "add": ["CAP_SYS_ADMIN"]}}),
        ({"capabilities": {"add": ["ALL"]}}, {"capabilities": {"add": ["ALL"]}}),
        ({"runAsUser": 0}, {"runAsUser": 0, "runAsNonRoot": False, **OURS}),
        ({"runAsUser": 0, "runAsNonRoot": True}, {"runAsUser": 0, "runAsNonRoot": True, **OURS}),
        ({"runAsUser": 1000}, {"runAsUser": 1000, **OURS}),
        ({"capabilities": "x"}, {"allowPrivilegeEscalation": False, "capabilities": "x"}),
    ],
)
def test_rights_that_a_template_contradicts_give_way(theirs: dict[str, Any], expected: dict[str, Any]) -> None:
    (main,) = rendered(containers=[{"name": MAIN_CONTAINER, "securityContext": theirs}])["containers"]
    assert main["securityContext"] == {"readOnlyRootFilesystem": False, **expected}


def test_root_of_a_pod_or_of_a_container_beside_is_no_contradiction() -> None:
    assert "runAsNonRoot" not in rendered(securityContext={"runAsUser": 0})["securityContext"]
    beside = rendered(initContainers=[{"name": "fetch", "image": "i", "securityContext": {"runAsUser": 0}}])
    assert beside["initContainers"][0]["securityContext"] == {"runAsUser": 0, "runAsNonRoot": False}
    assert beside["securityContext"]["runAsNonRoot"], "for all others"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"key": NOT_READY, "effect": "NoSchedule"}, [NOT_READY, UNREACHABLE]),
        ({"key": NOT_READY, "effect": "NoExecute"}, [UNREACHABLE]),
        ({"key": NOT_READY}, [UNREACHABLE]),
        ({"effect": "NoExecute"}, [NOT_READY, UNREACHABLE]),
        ({}, [NOT_READY, UNREACHABLE]),
        ({"key": NOT_READY, "tolerationSeconds": 5}, [UNREACHABLE]),
    ],
)
def test_a_toleration_replaces_ours_of_its_key_and_effect(theirs: dict[str, Any], ours: list[str]) -> None:
    found = rendered(tolerations=[{"operator": "Exists", **theirs}])["tolerations"]
    assert [toleration["key"] for toleration in found[:-1]] == ours
    seconds = {"effect": "NoExecute"} if "tolerationSeconds" in theirs else {}
    assert found[-1] == {"operator": "Exists", **theirs, **seconds}


def test_the_memory_of_the_node_is_not_hidden_by_our_volume() -> None:
    found = rendered(hostIPC=True)
    assert "shm" not in {volume["name"] for volume in found["volumes"]}
    assert "/dev/shm" not in {mount["mountPath"] for mount in found["containers"][0]["volumeMounts"]}


def test_another_volume_at_our_path_has_no_setting_of_ours() -> None:
    of = program(
        data={"volume": {"emptyDir": {}}},
        template={
            "spec": {
                "volumes": [{"name": "mine", "emptyDir": {}}],
                "containers": [{"name": MAIN_CONTAINER, "volumeMounts": [{"name": "mine", "mountPath": "/data/"}]}],
            }
        },
    )
    mounts = create_pod(of, of.spec, "image", 0).body["spec"]["containers"][0]["volumeMounts"]
    assert [mount for mount in mounts if mount["mountPath"].startswith("/data")] == [
        {"name": "mine", "mountPath": "/data/"}
    ]
