"""Renders the pod of one rank from the job, and merges the user's template into it.

All pods of an attempt differ only in the rank label and the rank variables, because schedulers group equal pods; in the
network of the node, rank 0 declares its port as well. There is
no init container and no other image: everything that the ranks need to start is in the environment.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ddpjob_operator.api import names
from ddpjob_operator.api.names import ProviderName, contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import CreatePod
from ddpjob_operator.core.failure.restart import restarts_left
from ddpjob_operator.core.model import Body, Job, Observed
from ddpjob_operator.core.ownership import common_labels, owner_reference
from ddpjob_operator.core.references import as_written
from ddpjob_operator.core.render.contradictions import allow_root, give_way
from ddpjob_operator.core.render.host_network import master_port, ports_of_rank_0, uses_host_network
from ddpjob_operator.core.render.overlay import overlaid, overlaid_list
from ddpjob_operator.core.render.service import master_address
from ddpjob_operator.core.security import HOME_DIR, TMP_DIR, container_security, has_own_home, pod_security
from ddpjob_operator.scheduling.affinity import add_term
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.none import NO_PROVIDER

#: Limit of /dev/shm for each process. Data loader workers and NCCL share memory there. It counts as memory of the
#: container when it is written.
SHM_BYTES_PER_PROCESS = 2**30
#: In a part of a command, it is torchrun that starts the ranks.
TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.run\b")
#: How long a pod stays on a node that does not respond. The default of Kubernetes is 300 s, in which all ranks wait.
LOST_NODE_TOLERATION_SECONDS = 30

#: How long ranks wait in their pods until a lost pod is replaced: for a node, the image, and its start.
REPLACEMENT_SECONDS = 300

#: Source of a variable whose value is the name of the pod's node.
NODE_OF_THE_POD = {"fieldRef": {"fieldPath": "spec.nodeName"}}
#: Prefix of resources that are GPUs for CUDA, including MIG slices.
CUDA_RESOURCES = "nvidia.com/"


def pod_name(job_name: str, attempt: int, rank: int, replacement: int = 0) -> str:
    """Name of the pod of one node rank in one attempt. The letter keeps it from being that of a pod of another job."""
    name = f"{job_name}-{attempt}-{rank}"
    return f"{name}-r{replacement}" if replacement else name


def name_of_pod(job: Job, rank: int) -> str:
    """Name of the pod of this node rank in the job's current attempt; one that was replaced keeps its name."""
    return pod_name(job.name, job.status.attempt, rank, job.status.replacement(rank))


def spec_hash(spec: DDPJobSpec) -> str:
    """A hash that is equal for two specs if and only if pods are rendered equally from them."""
    text = json.dumps(spec.shape(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_image(observed: Observed) -> str:
    """The image of a job that sets none: the one of its first pods, which a newer operator does not change."""
    status = observed.job.status
    # An operator of another release may have created pods a moment ago, before it could write the status.
    images = (pod.image for pod in observed.pods if pod.attempt == status.attempt and pod.image)
    return status.image or next(images, observed.trainer_image)


@dataclass(slots=True)
class _OfSpec:
    """What is computed of a spec once for all pods of a plan, since both take as long as the spec is large."""

    hash: str = ""
    template: str = ""
    """As JSON text: each pod gets objects of its own, which it may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodManifest:
    """The data from which the pod of one node rank is rendered."""

    job: Job
    spec: DDPJobSpec
    image: str
    rank: int
    avoided: tuple[str, ...] = ()
    """Nodes that the pod avoids if there are others."""
    provider: Provider = NO_PROVIDER
    """What schedules the gang."""
    of_spec: _OfSpec = field(default_factory=_OfSpec, repr=False, compare=False)
    """Shared by the manifests of one gang, which `for_rank` makes of each other."""

    def for_rank(self, rank: int) -> Self:
        """The manifest of another node rank."""
        return replace(self, rank=rank)

    def render(self) -> Body:
        """The pod as JSON (0.1 to 0.2 ms)."""
        job, spec, of_spec = self.job, self.spec, self.of_spec
        of_spec.hash = of_spec.hash or spec_hash(spec)
        of_spec.template = of_spec.template or _template(spec)
        template = json.loads(of_spec.template)
        body = _body(job, spec, self.image, self.rank, of_spec.hash)
        if spec.scheduling.priority_class_name:
            body["spec"]["priorityClassName"] = spec.scheduling.priority_class_name
        give_way(body["spec"], template.get("spec", {}))
        body = overlaid(body, template)
        allow_root(body["spec"])
        if self.avoided:
            add_term(body, "nodeAffinity", "preferred", _away_from(self.avoided))
        # The template cannot change the identity of the pod.
        name = name_of_pod(job, self.rank)
        body["metadata"] |= {"name": name, "namespace": job.namespace, "ownerReferences": [owner_reference(job)]}
        body["metadata"]["labels"] |= _labels(job, spec, self.rank)
        if self.provider.name != ProviderName.NONE:
            body["metadata"]["annotations"][names.ANNOTATION_SCHEDULING] = self.provider.name.value
        self.provider.decorate(body, job, spec, self.rank)
        return body


def create_pod(
    job: Job,
    spec: DDPJobSpec,
    image: str,
    rank: int,
    avoided: Sequence[str] = (),
    provider: Provider = NO_PROVIDER,
) -> CreatePod:
    """The action that creates the pod of this node rank in the job's current attempt, preferably not on these nodes."""
    manifest = PodManifest(job=job, spec=spec, image=image, rank=rank, avoided=tuple(avoided), provider=provider)
    return CreatePod(name=name_of_pod(job, rank), manifest=manifest)


def waits_for_pods(job: Job, spec: DDPJobSpec) -> bool:
    """Whether ranks of new pods can start again in place and wait for a lost pod, as those of our launcher do."""
    is_launched = spec.trainer is not None or any("ddpjob.launch" in part for part in spec.command or ())
    can_restart = spec.restart.in_place and restarts_left(spec, job.status.restarts) > 0
    return can_restart and is_launched and spec.nodes > 1


def _is_supervised(job: Job, spec: DDPJobSpec, rank: int) -> bool:
    """Whether the pod of this rank waits for lost pods: a new one as those that wait for it, whatever was edited meanwhile."""
    return job.status.replacement(rank) > 0 or waits_for_pods(job, spec)


def _labels(job: Job, spec: DDPJobSpec, rank: int) -> dict[str, str]:
    labels = {
        **common_labels(job),
        names.LABEL_ATTEMPT: str(job.status.attempt),
        names.LABEL_RANK: str(rank),
    }
    if _is_supervised(job, spec, rank):
        labels[names.LABEL_SUPERVISED] = "true"
    if replacement := job.status.replacement(rank):
        labels[names.LABEL_REPLACEMENT] = str(replacement)
    return labels


def _template(spec: DDPJobSpec) -> str:
    """The template as JSON."""
    return json.dumps(spec.template.model_dump(by_alias=True, mode="json", exclude_unset=True) if spec.template else {})


def _body(job: Job, spec: DDPJobSpec, image: str, rank: int, hash_of_spec: str) -> dict[str, Any]:
    volumes, mounts = _volumes(spec)
    container = _container(spec, image, environment_of(job, spec, rank), mounts)
    host_network: dict[str, Any] = {}
    if uses_host_network(spec):
        host_network["dnsPolicy"] = "ClusterFirstWithHostNet"  # Otherwise MASTER_ADDR cannot be resolved.
        if rank == 0 and (ports := ports_of_rank_0(job, spec)):
            container["ports"] = ports
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": _labels(job, spec, rank),
            "annotations": {
                names.ANNOTATION_SPEC_HASH: hash_of_spec,
                names.ANNOTATION_DEFAULT_CONTAINER: names.MAIN_CONTAINER,
                # A node that an autoscaler saves costs all ranks a restart.
                **names.UNDISTURBED,
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # So that the program is not PID 1, which ignores SIGTERM by default, and orphans are reaped.
            "shareProcessNamespace": True,
            "securityContext": pod_security(spec),
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{taint}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": LOST_NODE_TOLERATION_SECONDS,
                }
                for taint in ("not-ready", "unreachable")
            ],
            "topologySpreadConstraints": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "maxSkew": 1,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {
                        "matchLabels": {
                            names.LABEL_JOB_UID: job.uid,
                            names.LABEL_ATTEMPT: str(job.status.attempt),
                        }
                    },
                }
            ],
            "volumes": volumes,
            "containers": [container],
            **host_network,
        },
    }


def _away_from(nodes: Sequence[str]) -> dict[str, Any]:
    """A preference, since a gang on a doubtful node is better than one that waits for ever."""
    elsewhere = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    return {"weight": 100, "preference": {"matchFields": elsewhere}}


def _container(spec: DDPJobSpec, image: str, environment: Mapping[str, str], mounts: list[Body]) -> dict[str, Any]:
    own: list[Body] = [{"name": name, "value": value} for name, value in environment.items()]
    own.append({"name": contract.NODE_NAME, "valueFrom": NODE_OF_THE_POD})
    users = [variable.model_dump(by_alias=True, mode="json", exclude_unset=True) for variable in spec.env]
    container: dict[str, Any] = {
        "name": names.MAIN_CONTAINER,
        "image": image,
        "command": _command(spec),
        "env": overlaid_list(own, users, "env"),
        "securityContext": container_security(spec),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if resources := _resources(spec):
        container["resources"] = resources
    return container


def _command(spec: DDPJobSpec) -> list[str]:
    if spec.command is not None:
        return spec.command
    assert spec.trainer is not None, "the spec holds exactly one of trainer and command"
    # The API server adds defaults to a stored spec, but a job that an older release started keeps the image of that
    # release, whose trainer would refuse newer keys.
    config = spec.trainer.model_dump(by_alias=True, mode="json", exclude_unset=True, exclude_defaults=True)
    if spec.checkpoint and spec.checkpoint.every_steps:
        config["checkpointEverySteps"] = spec.checkpoint.every_steps
    return ["python", "-m", "ddpjob_trainer", "--config-json", as_written(json.dumps(config, sort_keys=True))]


def environment_of(job: Job, spec: DDPJobSpec, rank: int) -> dict[str, str]:
    """The variables of the process group for plain programs and for torchrun, and writable directories."""
    address, port = master_address(job.namespace, job.name), str(master_port(job, spec))
    processes, nodes = str(spec.processes), str(spec.nodes)
    environment = {
        contract.MASTER_ADDR: address,
        contract.MASTER_PORT: port,
        contract.WORLD_SIZE: str(spec.world_size),
        contract.RANK: str(rank * spec.processes),
        contract.NODE_RANK: str(rank),
        contract.NNODES: nodes,
        contract.NPROC_PER_NODE: processes,
        contract.PET_NNODES: nodes,
        contract.PET_NODE_RANK: str(rank),
        contract.PET_NPROC_PER_NODE: processes,
        contract.PET_MASTER_ADDR: address,
        contract.PET_MASTER_PORT: port,
        contract.DDPJOB_NAME: job.name,
        contract.DDPJOB_NAMESPACE: job.namespace,
        contract.DDPJOB_UID: job.uid,
        contract.DDPJOB_ATTEMPT: str(job.status.attempt),
        contract.PYTHONUNBUFFERED: "1",
        contract.TORCHINDUCTOR_CACHE_DIR: f"{TMP_DIR}/torchinductor",
        contract.TMPDIR: TMP_DIR,
    }
    if has_own_home(spec):
        environment |= {contract.HOME: HOME_DIR, contract.USER: "ddpjob"}
    if spec.processes == 1:  # with more, only the launcher can number the processes
        environment |= {contract.LOCAL_RANK: "0", contract.LOCAL_WORLD_SIZE: "1"}
    if spec.checkpoint:
        name = contract.DDPJOB_CHECKPOINT_URI if spec.checkpoint.uri else contract.DDPJOB_CHECKPOINT_DIR
        place = (spec.checkpoint.uri or contract.CHECKPOINT_DIR).rstrip("/")
        environment[name] = f"{place}/{job.namespace}/{job.name}"
    if spec.cache:
        environment |= {
            contract.DDPJOB_CACHE_DIR: contract.CACHE_DIR,
            contract.TORCHINDUCTOR_CACHE_DIR: f"{contract.CACHE_DIR}/torchinductor",
            contract.TRITON_CACHE_DIR: f"{contract.CACHE_DIR}/triton",
        }
    if spec.data:
        environment[contract.DDPJOB_DATA_DIR] = contract.DATA_DIR
    if spec.restart.in_place or job.status.replacement(rank):
        environment |= _restart_in_place(job, spec, rank)
    if _is_supervised(job, spec, rank):
        environment[contract.DDPJOB_REPLACEMENT_SECONDS] = str(REPLACEMENT_SECONDS)
    if job.status.replacement(rank):
        replaced = (f"{pod.rank}:{pod.replacement}" for pod in job.status.replaced_pods)
        environment[contract.DDPJOB_REPLACEMENTS] = ",".join(replaced)
    if spec.gpus_per_node and spec.gpu_resource.startswith(CUDA_RESOURCES):
        environment[contract.DDPJOB_GPUS_PER_NODE] = str(spec.gpus_per_node)
    return environment


def _restart_in_place(job: Job, spec: DDPJobSpec, rank: int) -> dict[str, str]:
    """The variables for what starts ranks again in place: our launcher, or torchrun."""
    if any(TORCHRUN.search(part) for part in spec.command or ()):
        return restart_by_torchrun(job, spec, rank)
    # One at least for a new pod, or its launcher would not join the ranks of the others.
    num_left = max(restarts_left(spec, job.status.restarts), int(job.status.replacement(rank) > 0))
    codes = [str(code) for rule in spec.restart.rules for code in rule.exit_codes]
    return {
        contract.DDPJOB_IN_PLACE_RESTARTS: str(num_left),
        contract.DDPJOB_FINAL_EXIT_CODES: ",".join(codes),
        **({} if spec.restart.state_in_memory else {contract.DDPJOB_STATE_IN_MEMORY: "0"}),
    }


def restart_by_torchrun(job: Job, spec: DDPJobSpec, rank: int) -> dict[str, str]:
    """The variables with which torchrun's agents start all workers again together (--rdzv-backend=c10d).

    c10d numbers the nodes in the order of their names (--local-addr) and uses that of the first one alone, for rank 0. So the
    others get names that sort behind it. The operator reads rank 0's log in the first pod.
    """
    address = master_address(job.namespace, job.name)
    return {
        contract.PET_MAX_RESTARTS: str(restarts_left(spec, job.status.restarts)),
        contract.PET_RDZV_BACKEND: "c10d",
        contract.PET_RDZV_ENDPOINT: f"{address}:{master_port(job, spec)}",
        contract.PET_RDZV_ID: f"{job.uid}-{job.status.attempt}",
        contract.PET_RDZV_CONF: f"is_host={int(rank == 0)}",
        contract.PET_LOCAL_ADDR: f"~{rank:05d}" if rank else address,
        contract.TORCH_DISABLE_SHARE_RDZV_TCP_STORE: "1",
    }


def _resources(spec: DDPJobSpec) -> dict[str, Any]:
    resources = spec.resources.model_dump(by_alias=True, mode="json", exclude_unset=True) if spec.resources else {}
    if spec.gpus_per_node:
        resources["limits"] = {**resources.get("limits", {}), spec.gpu_resource: str(spec.gpus_per_node)}
    return resources


def _volumes(spec: DDPJobSpec) -> tuple[list[Body], list[Body]]:
    """Volumes of the pod and where the main container mounts them."""
    shm = {"medium": "Memory", "sizeLimit": str(SHM_BYTES_PER_PROCESS * spec.processes)}
    volumes: list[Body] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": shm},
    ]
    mounts: list[Body] = [
        {"name": "tmp", "mountPath": TMP_DIR},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 shared memory of the container, not a temporary file
    ]
    if has_own_home(spec):
        volumes.append({"name": "home", "emptyDir": {}})
        mounts.append({"name": "home", "mountPath": HOME_DIR})
    if spec.data:
        volumes.append({**spec.data.volume, "name": "data"})
        mounts.append({"name": "data", "mountPath": contract.DATA_DIR, "readOnly": True})
    if spec.checkpoint and spec.checkpoint.volume:
        volumes.append({**spec.checkpoint.volume, "name": "checkpoints"})
        mounts.append({"name": "checkpoints", "mountPath": contract.CHECKPOINT_DIR})
    if spec.cache:
        volumes.append({**spec.cache.volume, "name": "cache"})
        mounts.append({"name": "cache", "mountPath": contract.CACHE_DIR})
    return volumes, mounts
