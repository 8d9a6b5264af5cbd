"""Converts Kubeflow's PyTorchJob (v1) and TrainJob (v2) to a DDPJob.

Both are read as data, without Kubeflow's libraries. Whatever a DDPJob has no equivalent for becomes a note, which the
command prints as a comment above the result, so that nothing is dropped in silence. Field names are those of
`kubeflow.org/v1` (training-operator 1.9) and `trainer.kubeflow.org/v1alpha1` (trainer 2.3).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ddpjob_cli.output import yaml_text
from ddpjob_operator.api.names import API_VERSION, KIND, MAIN_CONTAINER, MAX_JOB_NAME_LENGTH, RESERVED_VARIABLES
from ddpjob_operator.core.untrusted import visible

Object = Mapping[str, Any]

#: The label of the replicated job of a TrainingRuntime that runs the training.
_ANCESTOR: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
#: Flags of torchrun whose values the operator sets as variables. A flag would win over the variable.
_RENDEZVOUS_FLAGS: Final = frozenset(
    ["nnodes", "node-rank", "nproc-per-node", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"]
)  # fmt: skip
#: Values of managedBy that mean Kubeflow's own controllers.
_OWN_CONTROLLERS: Final = ("kubeflow.org/training-operator", "trainer.kubeflow.org/trainjob-controller")
#: What kubectl and controllers add to objects.
_FOREIGN_METADATA: Final = ("kubectl.kubernetes.io/", "kueue.x-k8s.io/")
#: Fields of a PodSpec that a DDPJob decides.
_POD_FIELDS_OF_THE_OPERATOR: Final = ("restartPolicy", "hostname", "subdomain", "containers", "initContainers")


class ConversionError(ValueError):
    """The objects cannot be converted. The text names the object, what was found and what is expected."""


@dataclass(slots=True)
class _Result:
    """A DDPJob under construction, and what it has no equivalent for."""

    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def convert(objects: Sequence[Object]) -> str:
    """The DDPJob for the one PyTorchJob or TrainJob among these objects, as YAML with a comment for each loss.

    A TrainJob may come with the TrainingRuntime or ClusterTrainingRuntime that it refers to.

    Raises:
        ConversionError: there is not exactly one such job, or it lacks what a DDPJob needs.
    """
    jobs = [body for body in objects if body.get("kind") in ("PyTorchJob", "TrainJob")]
    if len(jobs) != 1:
        kinds = ", ".join(str(body.get("kind")) for body in objects) or "nothing"
        raise ConversionError(f"found {kinds}; expected one PyTorchJob, or one TrainJob with its runtime")
    (job,) = jobs
    title = f"{job['kind']} {_metadata(job).get('name')}"
    if job["kind"] == "PyTorchJob":
        result = _from_pytorch_job(title, job.get("spec") or {})
    else:
        result = _from_train_job(title, job.get("spec") or {}, objects)
    return _text(title, _metadata_of_result(job, result), result)


def _from_pytorch_job(title: str, spec: Object) -> _Result:
    result = _Result()
    replicas = spec.get("pytorchReplicaSpecs") or {}
    if unknown := sorted(replicas.keys() - {"Master", "Worker"}):
        raise ConversionError(f"{title}: spec.pytorchReplicaSpecs has {', '.join(unknown)}; expected Master and Worker")
    groups = [replicas[name] for name in ("Worker", "Master") if name in replicas]
    if not groups:
        raise ConversionError(f"{title}: spec.pytorchReplicaSpecs is empty; expected Master, Worker or both")
    result.spec["nodes"] = sum(int(group.get("replicas", 1)) for group in groups)
    if len(groups) == 2 and groups[0].get("template") != groups[1].get("template"):
        result.notes.append("Master and Worker have different templates; a DDPJob has one, and this is the Worker's.")
    if elastic := spec.get("elasticPolicy"):
        result.notes.append(
            f"elasticPolicy ({elastic.get('minReplicas', '?')} to {elastic.get('maxReplicas', '?')} replicas) has no"
            " equivalent: nodes changes by `kubectl scale` or a HorizontalPodAutoscaler."
        )
    _take_processes(result, spec.get("nprocPerNode", (spec.get("elasticPolicy") or {}).get("nProcPerNode")))
    _take_template(title, result, groups[0].get("template") or {}, main="pytorch")
    _take_restart_policy(result, groups[0].get("restartPolicy", "OnFailure"))
    _take_run_policy(result, spec.get("runPolicy") or {})
    return result


def _take_restart_policy(result: _Result, policy: str) -> None:
    if policy == "Never":
        result.spec["restart"] = {"maxRestarts": 0}
    if policy == "ExitCode":
        result.notes.append(
            "restartPolicy ExitCode ended the job for every exit code from 1 to 127. restart.rules lists exit codes one by"
            " one; here it has 1 and 2: add the others that your program uses."
        )
        result.spec["restart"] = {"rules": [{"exitCodes": [1, 2], "action": "Fail"}]}


def _take_run_policy(result: _Result, policy: Object) -> None:
    if "backoffLimit" in policy:
        result.spec.setdefault("restart", {})["maxRestarts"] = policy["backoffLimit"]
    _take_end(result, policy)
    if policy.get("cleanPodPolicy") not in (None, "None", "Running"):
        result.notes.append(
            "cleanPodPolicy: a DDPJob keeps its failed pods; set ttlSecondsAfterFinished to remove them."
        )
    _take_scheduling(result, policy.get("schedulingPolicy") or {})


def _take_scheduling(result: _Result, policy: Object) -> None:
    equivalents = {"queue": "queueName", "priorityClass": "priorityClassName"}
    if scheduling := {name: policy[known] for known, name in equivalents.items() if policy.get(known)}:
        result.spec["scheduling"] = scheduling
    if others := sorted(policy.keys() - equivalents.keys()):
        result.notes.append(
            f"runPolicy.schedulingPolicy ({', '.join(others)}) has no equivalent: all pods of a DDPJob are one gang."
        )


def _take_end(result: _Result, policy: Object) -> None:
    """The limits that both kinds of jobs have, under the same names."""
    if seconds := policy.get("activeDeadlineSeconds"):
        result.spec["deadlines"] = {"activeSeconds": seconds}
    for name in ("ttlSecondsAfterFinished", "suspend"):
        if policy.get(name) not in (None, False):
            result.spec[name] = policy[name]
    if (controller := policy.get("managedBy")) not in (None, *_OWN_CONTROLLERS):
        result.spec["managedBy"] = controller


def _from_train_job(title: str, spec: Object, objects: Sequence[Object]) -> _Result:
    result = _Result()
    runtime = _runtime_of(title, spec, objects, result)
    trainer = spec.get("trainer") or {}
    policy = runtime.get("mlPolicy") or {}
    result.spec["nodes"] = int(trainer.get("numNodes") or policy.get("numNodes") or 1)
    _take_processes(result, trainer.get("numProcPerNode", (policy.get("torch") or {}).get("numProcPerNode")))
    job_set = (runtime.get("template") or {}).get("spec") or {}
    template = _training_template(job_set, result)
    _overlay_trainer(template, trainer)
    _take_template(title, result, template, main="node")
    if failure := job_set.get("failurePolicy"):
        result.spec["restart"] = {"maxRestarts": failure.get("maxRestarts", 0)}
        if failure.get("rules"):
            result.notes.append("failurePolicy.rules has no equivalent; restart.rules decides by exit code.")
    _take_end(result, {**job_set, **spec})
    for name in ("initializer", "runtimePatches", "podTemplateOverrides"):
        if spec.get(name):
            result.notes.append(
                f"spec.{name} has no equivalent; init containers and settings of pods go into template."
            )
    if runtime.get("podGroupPolicy"):
        result.notes.append(
            "podGroupPolicy is left out: what schedules the pods of a DDPJob together is a setting of the operator (the"
            " chart's scheduling.provider)."
        )
    if others := sorted(policy.keys() - {"numNodes", "torch"}):
        raise ConversionError(f"{title}: its runtime is for {', '.join(others)}; a DDPJob runs PyTorch DDP only")
    return result


def _runtime_of(title: str, spec: Object, objects: Sequence[Object], result: _Result) -> Object:
    reference = spec.get("runtimeRef") or {}
    name, kind = reference.get("name"), reference.get("kind", "ClusterTrainingRuntime")
    for body in objects:
        if body.get("kind") == kind and _metadata(body).get("name") == name:
            return body.get("spec") or {}
    if not (spec.get("trainer") or {}).get("image"):
        raise ConversionError(
            f"{title}: the image is that of {kind} {name}, which is not in the file; append it"
            f" (kubectl get {kind.lower()} {name} -o yaml) or set spec.trainer.image"
        )
    result.notes.append(f"{kind} {name} is not in the file; what it sets for pods is missing here.")
    return {}


def _training_template(job_set: Object, result: _Result) -> dict[str, Any]:
    """The pod template of the replicated job that trains."""
    jobs = job_set.get("replicatedJobs") or []
    for job in jobs:
        labels = _metadata(job.get("template") or {}).get("labels") or {}
        if labels.get(_ANCESTOR) == "trainer" or job.get("name") in ("node", "trainer-node"):
            others = [str(other.get("name")) for other in jobs if other is not job]
            if others:
                result.notes.append(f"The runtime's jobs {', '.join(others)} have no equivalent.")
            return copy.deepcopy(dict(((job.get("template") or {}).get("spec") or {}).get("template") or {}))
    return {}


def _overlay_trainer(template: dict[str, Any], trainer: Object) -> None:
    """Lay what the TrainJob sets over the container `node` of its runtime."""
    containers = template.setdefault("spec", {}).setdefault("containers", [])
    main = next((container for container in containers if container.get("name") == "node"), None)
    if main is None:
        main = {"name": "node"}
        containers.append(main)
    main.update({name: trainer[name] for name in ("image", "command", "args") if trainer.get(name)})
    if trainer.get("resourcesPerNode"):
        main["resources"] = trainer["resourcesPerNode"]
    environ = {variable["name"]: variable for variable in (*main.get("env", []), *(trainer.get("env") or []))}
    main["env"] = list(environ.values())


def _take_processes(result: _Result, number: object) -> None:
    if isinstance(number, int) or (isinstance(number, str) and number.isdecimal()):
        result.spec["processesPerNode"] = int(number)
    elif number == "cpu":
        result.notes.append("One process for each CPU (nprocPerNode: cpu) has no equivalent; set processesPerNode.")


def _take_template(title: str, result: _Result, template: Object, *, main: str) -> None:
    """Spread a pod template over the fields of a DDPJob; what has no field of its own goes into `template`."""
    pod = dict(template.get("spec") or {})
    containers = [dict(container) for container in pod.get("containers") or []]
    chosen = next((container for container in containers if container.get("name") == main), None)
    if chosen is None:
        found = ", ".join(str(container.get("name")) for container in containers) or "none"
        raise ConversionError(f"{title}: found the containers {found}; expected one with the name {main}")
    rest_of_main = _take_main_container(title, result, chosen)
    others = [container for container in containers if container is not chosen]
    overlay = {name: value for name, value in pod.items() if name not in _POD_FIELDS_OF_THE_OPERATOR}
    if init := pod.get("initContainers"):
        overlay["initContainers"] = init
    if rest_of_main or others:
        overlay["containers"] = [{"name": MAIN_CONTAINER, **rest_of_main}, *others] if rest_of_main else others
    metadata = {
        name: kept
        for name in ("labels", "annotations")
        if (kept := _own(_metadata(template).get(name) or {}))
    }  # fmt: skip
    if metadata or overlay:
        result.spec["template"] = {
            **({"metadata": metadata} if metadata else {}),
            **({"spec": overlay} if overlay else {}),
        }


def _take_main_container(title: str, result: _Result, container: dict[str, Any]) -> dict[str, Any]:
    """Move what a DDPJob has fields for into the spec; the result is the rest, for the container in `template`."""
    if not container.get("image"):
        raise ConversionError(f"{title}: the container {container['name']} has no image; set one")
    result.spec["image"] = container.pop("image")
    result.spec["command"] = _command(result, container.pop("command", None) or [], container.pop("args", None) or [])
    environ = [variable for variable in container.pop("env", []) if variable["name"] not in RESERVED_VARIABLES]
    if environ:
        result.spec["env"] = environ
    _take_resources(result, container.pop("resources", None) or {})
    for name in ("name", "ports", "restartPolicy"):
        container.pop(name, None)
    return container


def _command(result: _Result, command: Sequence[str], arguments: Sequence[str]) -> list[str]:
    if not command:
        result.notes.append(
            "The container had no command and ran the ENTRYPOINT of its image. A DDPJob needs a command: replace torchrun with that program."
        )
        command = ["torchrun"]
    whole = [str(part) for part in (*command, *arguments)]
    kept, dropped, value_follows = [], [], False
    for part in whole:
        flag, equals, _ = part.partition("=")
        is_rendezvous = flag.startswith("--") and flag.strip("-").replace("_", "-") in _RENDEZVOUS_FLAGS
        if is_rendezvous or value_follows:
            dropped.append(part)
            value_follows = is_rendezvous and not equals
        else:
            kept.append(part)
    if dropped:
        result.notes.append(
            f"Left out of the command, because the operator sets variables with the same meaning: {' '.join(dropped)}"
        )
    return kept


def _take_resources(result: _Result, resources: Object) -> None:
    """GPUs become gpusPerNode; all other resources stay."""
    limits, requests = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    gpu = next(
        (name for name in (*limits, *requests) if name.endswith("/gpu") or name.startswith("nvidia.com/mig-")), None
    )
    if gpu:
        result.spec["gpusPerNode"] = int(limits.pop(gpu, None) or requests[gpu])
        requests.pop(gpu, None)
        if gpu != "nvidia.com/gpu":
            result.spec["gpuResource"] = gpu
    kept = {**({"requests": requests} if requests else {}), **({"limits": limits} if limits else {})}
    if kept:
        result.spec["resources"] = kept


def _metadata(body: Object) -> Object:
    return body.get("metadata") or {}


def _own(entries: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in entries.items() if not name.startswith(_FOREIGN_METADATA)}


def _metadata_of_result(job: Object, result: _Result) -> dict[str, Any]:
    metadata = _metadata(job)
    kept: dict[str, Any] = {name: metadata[name] for name in ("name", "namespace") if metadata.get(name)}
    if len(str(kept.get("name", ""))) > MAX_JOB_NAME_LENGTH:
        result.notes.append(f"The name is longer than {MAX_JOB_NAME_LENGTH} characters: choose a shorter one.")
    for name in ("labels", "annotations"):
        entries = metadata.get(name) or {}
        if own := _own(entries):
            kept[name] = own
        if queue := entries.get("kueue.x-k8s.io/queue-name"):
            result.spec.setdefault("scheduling", {})["queueName"] = queue
    return kept


#: The order of a spec that people write.
_ORDER: Final = (
    *("suspend", "nodes", "gpusPerNode", "gpuResource", "processesPerNode", "image", "command", "env", "resources"),
    *("managedBy", "scheduling", "restart", "deadlines", "ttlSecondsAfterFinished", "template"),
)


def _text(title: str, metadata: Object, result: _Result) -> str:
    spec = {name: result.spec[name] for name in _ORDER if name in result.spec}
    if result.spec.get("processesPerNode") == result.spec.get("gpusPerNode", 1):
        del spec["processesPerNode"]  # it is the default
    comments = [f"# {visible(line)}" for line in (f"Converted from {title}.", *(f"- {note}" for note in result.notes))]
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": dict(metadata), "spec": spec}
    return "\n".join(comments) + "\n" + yaml_text(body, width=120)
