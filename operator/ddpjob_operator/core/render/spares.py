"""Renders a spare pod, which waits until a pod of its attempt is lost, and the change by which it replaces that pod.

For the scheduler it is the pod of a rank. The launcher in it imports everything and waits for a file, its assignment, which the
kubelet writes from an annotation: the variables that differ between the pods of an attempt. So it needs no token.
"""

import json
from dataclasses import dataclass
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import CreatePod, PatchObject
from ddpjob_operator.core.model import POD, Body, Job, Pod
from ddpjob_operator.core.render.host_network import ports_of_rank_0
from ddpjob_operator.core.render.pods import PodManifest, environment_of
from ddpjob_operator.core.security import TMP_DIR
from ddpjob_operator.core.spare_pods import name_of_spare

#: The variables that a pod which takes over gets, where a pod of its rank has them.
ASSIGNED = (
    contract.RANK,
    contract.NODE_RANK,
    contract.PET_NODE_RANK,
    contract.DDPJOB_IN_PLACE_RESTARTS,
    contract.DDPJOB_FINAL_EXIT_CODES,
    contract.DDPJOB_REPLACEMENT_SECONDS,
    contract.DDPJOB_REPLACEMENTS,
)
#: The value of the rank until then. A launcher of an older release ends with it instead of joining the gang.
_UNASSIGNED = "unassigned"
_UNASSIGNED_VARIABLES = (contract.RANK, contract.NODE_RANK, contract.PET_NODE_RANK)

_VOLUME = "ddpjob-spare"
_DIRECTORY = "/ddpjob-spare"
_READY_FILE = f"{TMP_DIR}/ddpjob-spare-ready"
#: The kubelet looks this often until the launcher waits, and never again.
_PROBE_SECONDS = 2
#: A kubelet on a busy node takes more than the second that it allows by default.
_PROBE_TIMEOUT_SECONDS = 10
#: No number of looks is too many: a program that never comes to wait is of no use, and does no harm.
_MOST_PROBES = 2**31 - 1


def create_spare(job: Job, spec: DDPJobSpec, image: str, number: int, avoided: tuple[str, ...]) -> CreatePod:
    """The action that creates this spare pod of the job's current attempt."""
    manifest = PodManifest(job=job, spec=spec, image=image, rank=spec.nodes + number, avoided=avoided)
    return CreatePod(name=name_of_spare(job, number), manifest=SpareManifest(manifest, number))


def take_over(job: Job, spec: DDPJobSpec, rank: int, spare: Pod) -> PatchObject:
    """The action that makes this spare pod the pod of the node rank, as the status says."""
    variables = environment_of(job, spec, rank)
    assigned = {name: variables[name] for name in ASSIGNED if name in variables}
    labels = {
        names.LABEL_SPARE: None,
        names.LABEL_RANK: str(rank),
        names.LABEL_REPLACEMENT: str(job.status.replacement(rank)),
    }
    annotations = {names.ANNOTATION_ASSIGNMENT: json.dumps(assigned, sort_keys=True)}
    patch: Body = {"metadata": {"uid": spare.uid, "labels": labels, "annotations": annotations}}
    # Only this version: it has been seen as a spare pod, and none becomes the pod of two ranks.
    return PatchObject(kind=POD, name=spare.name, resource_version=spare.version, patch=patch)


@dataclass(frozen=True, slots=True)
class SpareManifest:
    """The data from which such a pod is rendered."""

    of_rank: PodManifest
    """The manifest of a rank that the gang does not have."""
    number: int

    def render(self) -> Body:
        """The pod as JSON."""
        body = self.of_rank.render()
        body["metadata"]["name"] = name_of_spare(self.of_rank.job, self.number)
        body["metadata"]["labels"][names.LABEL_SPARE] = "true"
        field = {"fieldPath": f"metadata.annotations['{names.ANNOTATION_ASSIGNMENT}']"}
        files = {"items": [{"path": "assignment", "fieldRef": field}]}
        body["spec"]["volumes"] = [*(body["spec"]["volumes"] or ()), {"name": _VOLUME, "downwardAPI": files}]
        for container in body["spec"]["containers"]:
            if container["name"] == names.MAIN_CONTAINER:
                _make_it_wait(container)
                if ports := ports_of_rank_0(self.of_rank.job, self.of_rank.spec):  # it may become rank 0
                    container["ports"] = [*(container.get("ports") or ()), *ports]
        return body


def _make_it_wait(container: dict[str, Any]) -> None:
    for variable in container["env"]:
        if variable["name"] in _UNASSIGNED_VARIABLES:
            variable["value"] = _UNASSIGNED
    container["env"] += [
        {"name": contract.DDPJOB_SPARE_ASSIGNMENT, "value": f"{_DIRECTORY}/assignment"},
        {"name": contract.DDPJOB_SPARE_READY, "value": _READY_FILE},
    ]
    mount = {"name": _VOLUME, "mountPath": _DIRECTORY, "readOnly": True}
    container["volumeMounts"] = [*(container["volumeMounts"] or ()), mount]  # the template may remove all others
    container["startupProbe"] = {
        "exec": {"command": ["cat", _READY_FILE]},
        "periodSeconds": _PROBE_SECONDS,
        "timeoutSeconds": _PROBE_TIMEOUT_SECONDS,
        "failureThreshold": _MOST_PROBES,
    }
    for probe in ("livenessProbe", "readinessProbe"):  # the program that they look at does not run yet
        container.pop(probe, None)
