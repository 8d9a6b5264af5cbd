"""What a local run leaves out of a pod, told in words. Pure."""

from collections.abc import Iterable

from ddpjob_operator.core.model import Body
from ddpjob_operator.core.render.pods import NODE_OF_THE_POD
from ddpjob_operator.local.volumes import Mount, localized

#: Parts of a pod's spec that a local run honours, or whose intent a process on one machine meets anyway.
_HONOURED = frozenset(
    {"containers", "volumes", "terminationGracePeriodSeconds", "restartPolicy", "automountServiceAccountToken"}
    | {"enableServiceLinks", "shareProcessNamespace"}
)
_HONOURED_OF_CONTAINER = frozenset(
    {"name", "command", "args", "env", "volumeMounts", "terminationMessagePolicy", "terminationMessagePath"}
)


def ignored_parts(pod: Body, mounts: Iterable[Mount]) -> tuple[str, ...]:
    """What this machine ignores or replaces, one short phrase each."""
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
    """Variables whose values only a cluster has; which node this is needs no telling where there is one."""
    found = [variable for variable in container.get("env") or () if "valueFrom" in variable]
    return [variable["name"] for variable in found if variable["valueFrom"] != NODE_OF_THE_POD]
