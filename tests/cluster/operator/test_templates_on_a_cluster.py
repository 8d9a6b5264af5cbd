"""Whatever the API server accepts as a plain pod, it accepts as a template, and the pods have what the template says.

A template is put together from parts of pods that say something about what the operator sets as well. The API server itself judges
the plain pod and those of the operator, in dry runs, and fills in its defaults.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpjob_operator.api.names import MAIN_CONTAINER
from ddpjob_operator.core.model import Body
from ddpjob_operator.core.render.placeholders import create_placeholder
from ddpjob_operator.core.render.pods import PodManifest, create_pod
from ddpjob_operator.transport.errors import RejectedError
from ddpjob_operator.transport.resources import DDPJOBS, PODS
from support.builders import job
from support.operator_cluster import Namespace

NEVER_READY = "node.kubernetes.io/not-ready"
HOSTNAME = "kubernetes.io/hostname"


def main(**fields: Any) -> Body:
    """A part of the container that runs the program."""
    return {"containers": [{"name": MAIN_CONTAINER, **fields}]}


def secured(**fields: Any) -> Body:
    return main(securityContext=fields)


def beside(name: str = "sidecar", **fields: Any) -> Body:
    return {"containers": [{"name": name, "image": "s", **fields}]}


def toleration(**fields: Any) -> Body:
    return {"tolerations": [{"operator": "Exists", **fields}]}


def spread(**fields: Any) -> Body:
    constraint = {"topologyKey": HOSTNAME, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, **fields}]}


def mounted(path: str, **fields: Any) -> Body:
    """A volume of the user's at this path of the main container."""
    return {
        "volumes": [{"name": "mine", "emptyDir": {}}],
        **main(volumeMounts=[{"name": "mine", "mountPath": path, **fields}]),
    }


CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
LABELS: Body = {"matchLabels": {"app": "mine"}}
#: Parts of pods. Each contradicts one of our defaults, comes close to it, or has to do with one of its fields.
PARTS: list[Body] = [
    toleration(key=NEVER_READY, effect="NoSchedule"),
    toleration(key=NEVER_READY, effect="NoExecute"),
    toleration(key=NEVER_READY, effect="NoExecute", tolerationSeconds=600),
    toleration(key=NEVER_READY),
    toleration(key="nvidia.com/gpu", effect="NoSchedule"),
    toleration(),
    {"hostNetwork": True},
    {"hostNetwork": True, "dnsPolicy": "Default"},
    {"hostNetwork": True, **main(ports=[{"name": "master", "containerPort": 9}])},
    {"hostNetwork": True, **beside(ports=[{"containerPort": 24001, "hostPort": 24001}])},
    main(ports=[{"name": "master", "containerPort": 24001}, {"containerPort": 24001, "protocol": "UDP"}]),
    {"hostPID": True},
    {"hostIPC": True},
    {"hostUsers": False},
    {"hostUsers": False, **secured(procMount="Unmasked")},
    {"shareProcessNamespace": False},
    {"shareProcessNamespace": True},
    {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"]}},
    {"terminationGracePeriodSeconds": 1},
    {"terminationGracePeriodSeconds": 3600, **main(lifecycle={"preStop": {"sleep": {"seconds": 40}}})},
    {"os": {"name": "linux"}, **main(lifecycle={"stopSignal": "SIGINT"})},
    {"os": {"name": "windows"}},
    {"os": {"name": "windows"}, "securityContext": {"windowsOptions": {"runAsUserName": "ContainerAdministrator"}}},
    {"hostNetwork": True, "securityContext": {"windowsOptions": {"hostProcess": True}}, "os": {"name": "windows"}},
    {"securityContext": {"runAsUser": 0}},
    {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}},
    {"securityContext": {"runAsNonRoot": False}},
    {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "mine.json"}}},
    {"securityContext": {"seccompProfile": {"type": "Unconfined"}, "supplementalGroups": [44]}},
    {"securityContext": {"fsGroupChangePolicy": "Always", "sysctls": [{"name": "net.core.somaxconn", "value": "9"}]}},
    secured(privileged=True),
    secured(privileged=True, readOnlyRootFilesystem=False),
    secured(allowPrivilegeEscalation=True),
    secured(capabilities={"add": ["CAP_SYS_ADMIN"]}),
    secured(capabilities={"add": ["SYS_ADMIN", "IPC_LOCK"]}),
    secured(capabilities={"add": ["ALL"]}),
    secured(capabilities={"drop": ["NET_RAW"]}),
    secured(runAsUser=0),
    secured(runAsUser=0, runAsNonRoot=False),
    secured(readOnlyRootFilesystem=True, seccompProfile={"type": "RuntimeDefault"}),
    spread(),
    spread(labelSelector=LABELS),
    spread(labelSelector=LABELS, matchLabelKeys=["ddpjob.dev/job-uid"]),
    spread(labelSelector=LABELS, minDomains=2, nodeTaintsPolicy="Honor"),
    spread(labelSelector={"matchExpressions": [{"key": "app", "operator": "Exists"}]}, topologyKey="rack"),
    {"volumes": [{"name": "tmp", "hostPath": {"path": "/scratch"}}]},
    {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}]},
    mounted("/tmp"),
    mounted("/tmp/"),
    mounted("/dev/shm", subPath="a"),
    mounted("/data"),
    mounted("/data", subPathExpr="$(RANK)"),
    mounted("/checkpoints", readOnly=True, recursiveReadOnly="Enabled"),
    {**mounted("/home/ddpjob", mountPropagation="Bidirectional"), **secured(privileged=True)},
    {**CLAIM, **main(resources={"claims": [{"name": "gpu"}]})},
    main(resources={"requests": {"cpu": "1"}, "limits": {"cpu": 2, "memory": "8Gi"}}),
    {"resources": {"limits": {"cpu": "4", "memory": "8Gi"}}},
    {"nodeSelector": {"gpu": "h200"}, "schedulingGates": [{"name": "example.org/wait"}]},
    {"nodeName": "node-1"},
    {"affinity": {"podAntiAffinity": {}}, "schedulerName": "mine"},
    {"automountServiceAccountToken": True, "enableServiceLinks": True},
    {"hostname": "rank", "subdomain": "mine", "setHostnameAsFQDN": True},
    {"activeDeadlineSeconds": 9, "imagePullSecrets": [{"name": "s"}]},
    {"initContainers": [{"name": "fetch", "image": "i", "securityContext": {"runAsUser": 0}}]},
    {"initContainers": [{"name": "proxy", "image": "i", "restartPolicy": "Always", "ports": [{"containerPort": 9}]}]},
    beside(securityContext={"runAsUser": 0, "privileged": True}),
    beside(livenessProbe={"exec": {"command": ["true"]}}, terminationMessagePolicy="File"),
    main(command=["python"], args=["$(RANK)"], workingDir="/app", image="mine:1", imagePullPolicy="Always"),
    main(env=[{"name": "A", "value": "$(RANK)"}], envFrom=[{"configMapRef": {"name": "c", "optional": True}}]),
    main(startupProbe={"tcpSocket": {"port": 9}}, stdin=True, tty=True, terminationMessagePath="/end"),
    main(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}]),
]

VOLUME: Body = {"volume": {"emptyDir": {}}}
#: What the spec of the job says next to its template. The port is one that a part declares as well.
JOBS: list[Body] = [
    {"trainer": {"recipe": "digits"}},
    {"trainer": {"recipe": "digits"}, "securityProfile": "baseline", "gpusPerNode": 1},
    {"command": ["python", "x.py"], "data": VOLUME, "checkpoint": VOLUME, "cache": VOLUME, "masterPort": 24001},
    {"command": ["python", "-m", "ddpjob.launch", "x.py"], "nodes": 2, "restart": {"inPlace": True}},
]


def together(one: Any, other: Any) -> Any:
    """Two parts of a pod as one: the later value of a field wins, and containers of one name are one."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {**one, **{key: together(one[key], value) if key in one else value for key, value in other.items()}}
    if not (isinstance(one, list) and isinstance(other, list) and all(isinstance(item, Mapping) for item in other)):
        return other
    same = [(found, item) for item in other for found in one if "name" in item and found.get("name") == item["name"]]
    new = [item for item in other if not any(item is joined for _, joined in same)]
    return [*(next((together(f, i) for f, i in same if f is item), item) for item in one), *new]


def has(wanted: Any, plain: Any, ours: Any) -> bool:
    """Whether our pod has each value that the template sets as the plain pod has it, where the API server has filled in both."""
    if plain is None or ours is None:
        return plain == ours
    if isinstance(wanted, Mapping):
        return all(has(value, plain.get(key), ours.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list) and all(isinstance(item, Mapping) for item in wanted):
        return all(any(has(item, found, own) for own in ours) for item, found in zip(wanted, plain, strict=False))
    return bool(plain == ours)


def pods_of(fields: Body) -> Iterable[Body]:
    """The pods that the operator makes of a job with these fields."""
    of = job(**fields)
    assert of.spec is not None
    manifest = PodManifest(job=of, spec=of.spec, image="image", rank=0)
    yield create_pod(of, of.spec, "image", 0).body
    yield create_placeholder(manifest).body


async def admitted(namespace: Namespace, body: Body, resource: Any = PODS) -> Body | str:
    """The object as the API server would store it, or why it refuses it."""
    metadata = {**body["metadata"], "namespace": namespace.name}
    metadata.pop("ownerReferences", None)
    try:
        return dict(
            await namespace.client.create(resource, namespace.name, {**body, "metadata": metadata}, dry_run=True)
        )
    except RejectedError as error:
        return str(error)


async def fault(namespace: Namespace, spec: Body, template: Body, *, must_be_plain: bool = False) -> str:
    """What is wrong with the pods of a job with this template; empty if nothing is, or if it would be refused as a plain pod."""
    mine = template.get("containers", [])
    containers = together([{"name": MAIN_CONTAINER, "image": "image"}], mine)
    pod = {"restartPolicy": "Never", **template, "containers": containers}
    plain = await admitted(namespace, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod})
    if isinstance(plain, str):
        return plain if must_be_plain else ""
    fields = {"processesPerNode": 1, **spec, "template": {"spec": template}}
    body = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": "job"}, "spec": fields}
    if isinstance(refused := await admitted(namespace, body, DDPJOBS), str):
        return refused
    for rendered in pods_of(fields):
        ours = await admitted(namespace, rendered)
        if isinstance(ours, str):
            return ours
        is_rank = rendered["metadata"]["name"] == "job-1-0"
        plain_containers = {c["name"]: c for c in plain["spec"]["containers"]}
        in_order = {**plain["spec"], "containers": [plain_containers[c["name"]] for c in mine]}
        if is_rank and not has(template, in_order, ours["spec"]):
            return f"the pod has other values than the template: {ours['spec']}"
    return ""


@pytest.mark.parametrize("spec", JOBS, ids=range(len(JOBS)))
async def test_each_part_of_a_pod_is_accepted_and_kept(namespace: Namespace, spec: Body) -> None:
    found = {repr(part): await fault(namespace, spec, part, must_be_plain=True) for part in PARTS}
    refused = {part: why for part, why in found.items() if why}
    assert not refused, refused


@settings(
    max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(spec=st.sampled_from(JOBS), parts=st.lists(st.sampled_from(PARTS), min_size=2, max_size=4, unique_by=repr))
async def test_parts_together_are_accepted_and_kept(namespace: Namespace, spec: Body, parts: list[Body]) -> None:
    template: Body = functools.reduce(together, parts)
    assert not await fault(namespace, spec, template)
