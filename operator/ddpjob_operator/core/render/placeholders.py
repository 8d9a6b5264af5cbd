"""Renders a pod without a program, which holds a place for a node that a job on fewer nodes lacks.

For the scheduler it is the pod of a rank: its resources, affinity, tolerations, priority and volumes are the same. It also makes the
node pull the image. It has no variable, mount or command of the job.
"""

from dataclasses import dataclass
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.core.actions import CreatePod
from ddpjob_operator.core.job_names import PLACE
from ddpjob_operator.core.model import Body, Job
from ddpjob_operator.core.render.pods import PodManifest, name_of_pod
from ddpjob_operator.core.stopping import SURVIVOR_GRACE_SECONDS

#: What a scheduler and an admission policy read of a container.
_KEPT = ("name", "image", "imagePullPolicy", "resources", "securityContext", "ports", "restartPolicy")
#: Some images know no `infinity`. In one without `sleep` the container does not start, and the pod holds its place all the same.
_COMMAND = ["sleep", "2147483647"]


def create_placeholder(of_rank: PodManifest) -> CreatePod:
    """The action that creates the pod that waits for the node of this rank in a gang of all nodes."""
    return CreatePod(name=_name(of_rank.job, of_rank.rank), manifest=PlaceholderManifest(of_rank))


def _name(job: Job, rank: int) -> str:
    # No pod of a rank has this end, of whichever job.
    return f"{name_of_pod(job, rank)}{PLACE}"


@dataclass(frozen=True, slots=True)
class PlaceholderManifest:
    """The data from which such a pod is rendered."""

    of_rank: PodManifest
    """The manifest of the rank that would run there."""

    def render(self) -> Body:
        """The pod as JSON."""
        body = self.of_rank.render()
        body["metadata"]["name"] = _name(self.of_rank.job, self.of_rank.rank)
        labels = body["metadata"]["labels"]
        labels.pop(names.LABEL_SUPERVISED, None)
        labels[names.LABEL_PLACEHOLDER] = "true"
        spec = body["spec"]
        # A container that ends at once must not end the pod.
        spec |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": SURVIVOR_GRACE_SECONDS}
        spec.pop("activeDeadlineSeconds", None)
        for kind in ("containers", "initContainers"):
            if kind in spec:
                spec[kind] = [_asleep(container) for container in spec[kind]]
        return body


def _asleep(container: dict[str, Any]) -> dict[str, Any]:
    return {key: container[key] for key in _KEPT if key in container} | {"command": _COMMAND}
