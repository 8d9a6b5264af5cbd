"""Lists the parts of a pod that a local run ignores. Pure."""

from collections.abc import Iterable

from ddpjob_operator.core.model import Body
from ddpjob_operator.core.render.pods import NODE_OF_THE_POD
from ddpjob_operator.local.volumes import Mount, localized

#: Fields of a PodSpec that a local run honours, or that have no effect on a process of one machine.
_HONOURED = frozenset(
    {"containers", "volumes", "terminationGracePeriodSeconds", "restartPolicy", "automountServiceAccountToken"}
    | {"enableServiceLinks", "shareProcessNamespace"}
)
_HONOURED_OF_CONTAINER = frozenset(
    {"name", "command", "args", "env", "volumeMounts", "terminationMessagePolicy", "terminationMessagePath"}
)


def ignored_parts(pod: Body, mounts: Iterable[Mount]) -> tuple[str, ...]:
    """The parts that a local run ignores or replaces, one short phrase each."""
    spec = pod["spec"]
    main, *others = spec["containers"]
    mounts = tuple(mounts)
    fields = sorted((spec.keys() - _HONOURED) | (main.keys() - _HONOURED_OF_CONTAINER))
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
