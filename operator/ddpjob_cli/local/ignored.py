"""Lists the parts of a pod that a local run ignores, of those that its user has set. Pure."""

from collections.abc import Iterable

from ddpjob_cli.local.volumes import Mount, localized
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.model import Body, Job
from ddpjob_operator.core.render.pods import NODE_OF_THE_POD, PodManifest

#: Fields of a PodSpec that a local run honours, or that have no effect on a process of one machine.
_HONOURED = frozenset(
    {"containers", "volumes", "terminationGracePeriodSeconds", "restartPolicy", "automountServiceAccountToken"}
    | {"enableServiceLinks", "shareProcessNamespace"}
)
_HONOURED_OF_CONTAINER = frozenset(
    {"name", "command", "args", "env", "volumeMounts", "terminationMessagePolicy", "terminationMessagePath"}
)


def plain_pod(job: Job, spec: DDPJobSpec, image: str) -> Body:
    """A pod of the job as it would be with this image and without the parts of the spec that a local run ignores."""
    kept = spec.model_copy(update={"image": None, "template": None, "resources": None})
    return PodManifest(job=job, spec=kept, image=image, rank=0).render()


def ignored_parts(pod: Body, plain: Body, mounts: Iterable[Mount]) -> tuple[str, ...]:
    """The parts that a local run ignores or replaces, one short phrase each; `plain` is the pod without its user's settings."""
    spec = pod["spec"]
    main, *others = spec["containers"]
    mounts = tuple(mounts)
    plain_main = plain["spec"]["containers"][0]
    of_pod = (key for key in spec.keys() - _HONOURED if spec[key] != plain["spec"].get(key))
    of_main = (key for key in main.keys() - _HONOURED_OF_CONTAINER if main[key] != plain_main.get(key))
    fields = sorted({*of_pod, *of_main})
    if (working_dir := main.get("workingDir", "")) != localized(working_dir, mounts):
        fields.remove("workingDir")
    return (
        *fields,
        *(f"container {container['name']}" for container in others),
        *(f"env {name} (valueFrom)" for name in _from_elsewhere(main)),
        *(f"{m.instead_of} at {m.path} (instead: {m.folder})" for m in mounts if m.instead_of),
    )


def _from_elsewhere(container: Body) -> list[str]:
    """Variables whose values only a cluster has, except the node's name, which has no use on one machine."""
    found = [variable for variable in container.get("env") or () if "valueFrom" in variable]
    return [variable["name"] for variable in found if variable["valueFrom"] != NODE_OF_THE_POD]
