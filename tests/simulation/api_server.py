"""What the API server is to the operator: objects with versions, preconditions, graceful deletion, and a history.

Errors are those that the operator's client makes of the real server's answers. Bodies are never changed in place: whoever
holds one holds a moment of the past.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.transport.errors import ConflictError, GoneError, NotFoundError, RejectedError, UnavailableError
from simulation.virtual_time import OperatorClocks

Body = Mapping[str, Any]
NAMESPACE = "default"
PODS, SERVICES, NODES, JOBS, EVENTS = "pods", "services", "nodes", "ddpjobs", "events"
POD_GROUPS = "podgroups"
#: Grace of a pod whose template sets none.
DEFAULT_GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry of the history."""

    version: int
    type: str
    """ADDED, MODIFIED or DELETED."""
    plural: str
    body: Body


class Observer(Protocol):
    """Is called for every change, with its author."""

    def on_change(self, plural: str, old: Body | None, new: Body | None, by: str) -> None:
        """`old` is None for a new object, `new` for one that is gone."""


class ApiServer:
    """The objects of one namespace, and the nodes."""

    def __init__(self, clocks: OperatorClocks) -> None:
        self._clocks = clocks
        plurals = (PODS, SERVICES, NODES, JOBS, EVENTS, POD_GROUPS)
        self._objects: dict[str, dict[str, Body]] = {plural: {} for plural in plurals}
        self._num_uids = 0
        self.version = 1
        self.history: list[Change] = []
        self.oldest_version = 1
        """Watches from before it are answered 410."""
        self.observers: list[Observer] = []
        self.listeners: list[Callable[[Change], None]] = []
        """The open watches."""
        self.pod_quota: int | None = None
        self.webhook_is_broken = False
        self.idle_patches: list[tuple[str, str, str]] = []
        """Kind, name and author of each patch that changed nothing."""

    @property
    def now(self) -> float:
        """The server's wall clock, which is right."""
        return self._clocks.wall_of("")

    # --- What clients ask for -------------------------------------------------------------------------------------

    def get(self, plural: str, name: str) -> Body:
        """One object. Raises NotFoundError."""
        body = self._objects[plural].get(name)
        if body is None:
            raise NotFoundError(f"get {plural}/{name}", f'{plural} "{name}" not found', status=404)
        return body

    def find(self, plural: str, name: str) -> Body | None:
        """One object, if it is there."""
        return self._objects[plural].get(name)

    def all(self, plural: str, labels: str = "") -> list[Body]:
        """The objects that carry these labels."""
        return [body for body in self._objects[plural].values() if carries(body, labels)]

    def create(self, plural: str, body: Body, by: str) -> Body:
        """Raises ConflictError for a name that is taken, RejectedError for what admission refuses."""
        name = body["metadata"]["name"]
        request = f"create {plural}/{name}"
        if name in self._objects[plural]:
            raise ConflictError(request, f'{plural} "{name}" already exists', status=409)
        if plural == PODS and by != "user":
            self._admit(request)
        self._num_uids += 1
        metadata = {
            "namespace": NAMESPACE,
            **body["metadata"],
            "uid": f"{plural}-uid-{self._num_uids}",
            "creationTimestamp": rfc3339(self.now),
            "generation": 1,
        }
        return self._put(plural, None, {**body, "metadata": metadata}, by)

    def delete(self, plural: str, name: str, *, uid: str | None, grace_seconds: int | None, by: str) -> None:
        """Pods whose containers may run, and the groups of pods, are only marked; everything else goes at once."""
        body = self.get(plural, name)
        if uid is not None and body["metadata"]["uid"] != uid:
            raise ConflictError(f"delete {plural}/{name}", "the UID in the precondition is another one", status=409)
        if plural == POD_GROUPS and self.members(name):
            if "deletionTimestamp" not in body["metadata"]:
                marked = {**body["metadata"], "deletionTimestamp": rfc3339(self.now)}
                self._put(plural, body, {**body, "metadata": marked}, by)
            return
        if plural != PODS or self._goes_at_once(body, grace_seconds):
            self.remove(plural, body["metadata"]["uid"], by)
            return
        grace = _own_grace(body) if grace_seconds is None else grace_seconds
        metadata = body["metadata"]
        deadline = rfc3339(self.now + grace)
        if metadata.get("deletionTimestamp", deadline) < deadline or metadata.get("deletionTimestamp") == deadline:
            return  # a grace can only become shorter
        marked = {**metadata, "deletionTimestamp": deadline, "deletionGracePeriodSeconds": grace}
        self._put(plural, body, {**body, "metadata": marked}, by)

    def members(self, group: str) -> list[Body]:
        """The pods that name this PodGroup and have not ended."""
        return [pod for pod in self.all(PODS) if group_of(pod) == group and not is_over(pod)]

    def expect_version(self, plural: str, name: str, version: str) -> None:
        """Raises ConflictError if the object has another version than this one; an empty one is any."""
        if version and self.get(plural, name)["metadata"]["resourceVersion"] != version:
            raise ConflictError(f"delete {plural}/{name}", "the ResourceVersion is another one", status=409)

    def merge_patch(self, plural: str, name: str, patch: Body, subresource: str | None, by: str) -> Body:
        """Raises ConflictError for another version, RejectedError for what may not change."""
        old = self.get(plural, name)
        request = f"patch {plural}/{name}"
        metadata = patch.get("metadata", {})
        version = metadata.get("resourceVersion")
        if version is not None and version != old["metadata"]["resourceVersion"]:
            raise ConflictError(request, "the object has been modified; please apply your changes", status=409)
        is_status = subresource == "status"
        if not is_status and metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise RejectedError(request, "metadata.uid: field is immutable", status=422)
        parts = ("status",) if is_status else ("spec",)
        changed = {part: merged(old.get(part) or {}, patch[part]) for part in parts if part in patch}
        described = {part: metadata[part] for part in ("labels", "annotations") if part in metadata}
        new = {**old, **changed, "metadata": merged(old["metadata"], described)}
        if plural == JOBS and is_status:
            self._check_attempt(request, old, new)
        if plural == PODS:
            self._check_deadline(request, old, new)
        if new == old:
            self.idle_patches.append((plural, name, by))
            return old
        if plural == JOBS and not is_status:
            new["metadata"] = {**new["metadata"], "generation": old["metadata"]["generation"] + 1}
        return self._put(plural, old, new, by)

    def changes_after(self, plural: str, version: int) -> list[Change]:
        """What a watch from this version begins with. Raises GoneError for one that is forgotten."""
        if version < self.oldest_version:
            raise GoneError(f"watch {plural}", f"too old resource version: {version}", status=410)
        return [change for change in self.history if change.version > version and change.plural == plural]

    # --- What the cluster's own parts do -----------------------------------------------------------------------------

    def by_uid(self, plural: str, uid: str) -> Body | None:
        """One object by uid."""
        return next((body for body in self._objects[plural].values() if body["metadata"]["uid"] == uid), None)

    def update(self, plural: str, uid: str, parts: Mapping[str, Any], by: str) -> None:
        """Replace whole parts of an object that may be gone by now."""
        old = self.by_uid(plural, uid)
        if old is not None:
            new = {**old, **parts}
            if new != old:
                self._put(plural, old, new, by)

    def remove(self, plural: str, uid: str, by: str) -> None:
        """The object goes now."""
        old = self.by_uid(plural, uid)
        if old is None:
            return
        del self._objects[plural][old["metadata"]["name"]]
        self.version += 1
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._notify(Change(version=self.version, type="DELETED", plural=plural, body=last), old, None, by)

    def forget_history(self) -> None:
        """Compaction: whoever watches from an older version has to list again."""
        self.oldest_version = self.version
        self.history.clear()

    def _put(self, plural: str, old: Body | None, new: Mapping[str, Any], by: str) -> Body:
        self.version += 1
        body = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
        self._objects[plural][body["metadata"]["name"]] = body
        kind = "ADDED" if old is None else "MODIFIED"
        self._notify(Change(version=self.version, type=kind, plural=plural, body=body), old, body, by)
        return body

    def _notify(self, change: Change, old: Body | None, new: Body | None, by: str) -> None:
        self.history.append(change)
        for listener in self.listeners:
            listener(change)
        for observer in self.observers:
            observer.on_change(change.plural, old, new, by)

    def _admit(self, request: str) -> None:
        if self.webhook_is_broken:
            raise UnavailableError(request, 'failed calling webhook "pods.example.com"', status=500)
        if self.pod_quota is not None and len(self._objects[PODS]) >= self.pod_quota:
            used = f"used: pods={len(self._objects[PODS])}, limited: pods={self.pod_quota}"
            raise RejectedError(request, f"exceeded quota: team, requested: pods=1, {used}", status=403)

    @staticmethod
    def _goes_at_once(body: Body, grace_seconds: int | None) -> bool:
        phase = body.get("status", {}).get("phase")
        return grace_seconds == 0 or "nodeName" not in body["spec"] or phase in ("Succeeded", "Failed")

    @staticmethod
    def _check_attempt(request: str, old: Body, new: Body) -> None:
        """The CRD's rule on `status`."""
        before = (old.get("status") or {}).get("attempt")
        after = (new.get("status") or {}).get("attempt")
        if before is not None and (after is None or after < before):
            raise RejectedError(request, "status: Invalid value: status.attempt must not decrease", status=422)

    @staticmethod
    def _check_deadline(request: str, old: Body, new: Body) -> None:
        before, after = (body["spec"].get("activeDeadlineSeconds") for body in (old, new))
        if before is not None and (after is None or after > before):
            raise RejectedError(request, "must be less than or equal to previous value", status=422)


def owner_uid(body: Body) -> str:
    """The uid of the controller; empty for an object of nobody's."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def group_of(pod: Body) -> str:
    """The PodGroup that a pod names; empty for none."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName", ""))


def is_over(pod: Body) -> bool:
    """Whether all containers of a pod have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def carries(body: Body, labels: str) -> bool:
    """Whether an object has these labels."""
    has = body["metadata"].get("labels") or {}
    terms = (term.partition("=") for term in labels.split(",") if term)
    return all(has.get(name) == value if equals else name in has for name, equals, value in terms)


def _own_grace(body: Body) -> int:
    return int(body["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))


def merged(old: Any, patch: Any) -> Any:
    """The object after a merge patch, by the algorithm of RFC 7386, section 2."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
