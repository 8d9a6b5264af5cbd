"""Which of the operator's defaults give way because a template says something that contradicts them.

Merging alone lets the template win only where it sets the very field. Two different fields can contradict each other as well: the API
server then refuses the pod, the kubelet does not start it, or the template has no effect. What nothing contradicts stays.
"""

from collections.abc import Mapping
from typing import Any

from ddpjob_operator.api.names import MAIN_CONTAINER

#: With these a process can gain privileges, which allowPrivilegeEscalation: false forbids.
_ESCALATING = frozenset({"SYS_ADMIN", "CAP_SYS_ADMIN", "ALL"})


def give_way(pod: dict[str, Any], template: dict[str, Any]) -> None:
    """Remove from the operator's pod spec, before the template's is merged into it, what the template contradicts."""
    (main,) = pod["containers"]
    theirs = next((c for c in _items(template.get("containers")) if c.get("name") == MAIN_CONTAINER), {})
    _privileges(main["securityContext"], _mapping(theirs.get("securityContext")))
    if _mapping(template.get("securityContext")).get("runAsUser") == 0:
        pod["securityContext"].pop("runAsNonRoot", None)
    _tolerations(pod, _items(template.get("tolerations")))
    if template.get("hostPID") is True:
        del pod["shareProcessNamespace"]
    if template.get("hostIPC") is True:  # which asks for the shared memory of the node
        pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "shm"]
        main["volumeMounts"] = [mount for mount in main["volumeMounts"] if mount["name"] != "shm"]
    if _mapping(template.get("os")).get("name") == "windows":  # whose pods may have no field of Linux
        del pod["securityContext"], main["securityContext"]
        pod.pop("shareProcessNamespace", None)


def allow_root(pod: dict[str, Any]) -> None:
    """In the merged pod spec, let those containers start that the template runs as root where runAsNonRoot is set for the pod alone."""
    if _mapping(pod.get("securityContext")).get("runAsNonRoot") is not True:
        return
    for container in (*_items(pod.get("containers")), *_items(pod.get("initContainers"))):
        security = _mapping(container.get("securityContext"))
        if security.get("runAsUser") == 0:
            container["securityContext"] = {"runAsNonRoot": False, **security}


def _privileges(ours: dict[str, Any], theirs: Mapping[str, Any]) -> None:
    added = _mapping(theirs.get("capabilities")).get("add")
    capabilities = {str(name).upper() for name in added} if isinstance(added, list) else set()
    is_privileged = theirs.get("privileged") is True
    if is_privileged or capabilities & _ESCALATING:
        ours.pop("allowPrivilegeEscalation", None)
    if is_privileged or "ALL" in capabilities:
        ours.pop("capabilities", None)


def _tolerations(pod: dict[str, Any], theirs: list[dict[str, Any]]) -> None:
    """A toleration replaces ours of its key and effect. Without an effect it is for all; without tolerationSeconds, for ever.

    One without a key tolerates whatever taint a node has, and says nothing of lost nodes: ours stay next to it.
    """
    for toleration in theirs:
        if "tolerationSeconds" in toleration:  # which only this effect can have
            toleration.setdefault("effect", "NoExecute")
    replaced = [(toleration.get("key"), toleration.get("effect")) for toleration in theirs]
    pod["tolerations"] = [
        own
        for own in pod["tolerations"]
        if (own["key"], own["effect"]) not in replaced and (own["key"], None) not in replaced
    ]


def _mapping(value: object) -> Mapping[str, Any]:
    """A field of a template, which may hold anything."""
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
