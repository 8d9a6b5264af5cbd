"""From the API's JSON to the records that decisions are made of.

Everything foreign is checked here, once: a body that is not ours is refused with `ValueError`, and what a job's stored
spec or status has wrong becomes data, since a decision must never raise for what a user can do.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.names import ConditionType, Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus, Failure
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.model import (
    CLOCK_MARGIN_SECONDS,
    GATED,
    Body,
    Deletion,
    Exit,
    Job,
    Membership,
    OwnedObject,
    Pod,
    Security,
    Service,
    Waiting,
    Watched,
)
from ddpjob_operator.core.stored_spec import spec_of, why_too_large
from ddpjob_operator.core.stored_status import status_of
from ddpjob_operator.core.times import epoch_seconds
from ddpjob_operator.core.untrusted import tail

#: Conditions of a pod that the cluster ends.
_DISRUPTIONS = ("DisruptionTarget", "TerminationTarget")
#: Waiting reasons of a container that is simply on its way.
_ON_ITS_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})


def job_of(body: Body, known: Job | None = None) -> Job:
    """The DDPJob of an API body; a spec that does not parse is kept as `spec_error`.

    `known` is an earlier version of it, whose spec is taken over where the generation says that it is the same.
    """
    metadata, managed_by = body["metadata"], (body.get("spec") or {}).get("managedBy")
    if known is not None and (known.uid, known.generation) == (metadata["uid"], metadata.get("generation", 0)):
        spec, spec_error = known.spec, known.spec_error
    else:
        spec, spec_error = _spec_of(body)
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        spec=spec,
        spec_error=spec_error,
        managed_by=managed_by,
        status=_with_ranks(status_of(body.get("status") or {}), spec),
    )


def _with_ranks(status: DDPJobStatus, spec: DDPJobSpec | None) -> DDPJobStatus:
    """The status with the ranks of failures, of which an older release stored the node rank only.

    They are the same where each pod has one process.
    """
    if spec is None or spec.processes != 1 or not (status.failure or status.attempts):
        return status
    failure, attempts = status.failure, [_with_rank(known) for known in status.attempts]
    return status.model_copy(update={"failure": failure and _with_rank(failure), "attempts": attempts})


def _with_rank(failure: Failure) -> Failure:
    return failure if failure.global_rank is not None else failure.model_copy(update={"global_rank": failure.rank})


def _spec_of(body: Body) -> tuple[DDPJobSpec | None, str]:
    """The parsed spec, or None and why the operator does not use it."""
    spec = body.get("spec") or {}
    if (too_large := why_too_large(spec)) and not _runs_with_its_spec(body):
        return None, too_large
    return spec_of(spec)


def _runs_with_its_spec(body: Body) -> bool:
    """Whether the pods of the job were created from this very spec, by a release without the limit on its size."""
    status = status_of(body.get("status") or {})
    is_acted_on = status.observed_generation == body["metadata"].get("generation", 0)
    is_refused = any(found.reason == Reason.INVALID_SPEC and found.status == "True" for found in status.conditions)
    return status.condition(ConditionType.CREATED) and is_acted_on and not is_refused


def pod_of(body: Body, known: Pod | None = None) -> Pod:
    """The record of a pod that a DDPJob owns. `known` is that of an earlier version of it, which saves parsing again.

    Raises:
        ValueError: if the pod lacks a label of ours or is not owned by the job it names.
    """
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    labels = metadata.get("labels") or {}
    job_uid = _owned_by(metadata)
    phase = status.get("phase", "Pending")
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    main = _named(status.get("containerStatuses"), names.MAIN_CONTAINER)
    state = main.get("state") or {}
    exit_ = _exit(state, known.exit if known else None) or _failed_init(spec, status)
    if phase == "Succeeded" and exit_ is None:  # its containers' states were lost, and the phase says how they ended
        exit_ = Exit(code=0, signal=None, reason="Completed", message="")
    is_held = names.KUEUE_FINALIZER in (metadata.get("finalizers") or ())
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        job_uid=job_uid,
        attempt=_number(labels, names.LABEL_ATTEMPT),
        rank=_number(labels, names.LABEL_RANK),
        replacement=_number(labels, names.LABEL_REPLACEMENT) if names.LABEL_REPLACEMENT in labels else 0,
        is_supervised=labels.get(names.LABEL_SUPERVISED) == "true",
        is_placeholder="true" in (labels.get(names.LABEL_PLACEHOLDER), labels.get(names.LABEL_SPARE)),
        spec_hash=(metadata.get("annotations") or {}).get(names.ANNOTATION_SPEC_HASH, ""),
        node=spec.get("nodeName"),
        phase=phase,
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        running="running" in state,
        exit=exit_,
        # Kueue goes by the phase, which follows the end of the containers: a pod that is created before counts as one
        # too many.
        all_ended=phase in ("Succeeded", "Failed") or (not is_held and _none_can_run(spec, status)),
        waiting=_waiting(spec, status, conditions),
        disruption=_disruption(conditions, exit_),
        deletion=_deletion(metadata),
        active_deadline_seconds=spec.get("activeDeadlineSeconds"),
        placed=_placed(spec, status, conditions),
        image=_named(spec.get("containers"), names.MAIN_CONTAINER).get("image", ""),
        grace_seconds=spec.get("terminationGracePeriodSeconds", 30),
        security=_security(spec),
        scheduling=(metadata.get("annotations") or {}).get(names.ANNOTATION_SCHEDULING, ""),
        membership=_membership(metadata, is_held),
        version=metadata.get("resourceVersion", "") if "nodeName" not in spec else "",
    )


def _membership(metadata: Body, is_held: bool) -> Membership | None:
    group = (metadata.get("labels") or {}).get(names.KUEUE_GROUP_NAME)
    if group is None:
        return None
    retriable = (metadata.get("annotations") or {}).get(names.KUEUE_RETRIABLE_IN_GROUP)
    others = tuple(name for name in metadata.get("finalizers") or () if name != names.KUEUE_FINALIZER)
    return Membership(group=group, is_held=is_held, closes=retriable == "false", other_finalizers=others)


def _security(spec: Body) -> Security | None:
    """The API server adds an empty securityContext to every pod; only a process of this machine has none."""
    if "securityContext" not in spec:
        return None
    main = _named(spec.get("containers"), names.MAIN_CONTAINER).get("securityContext") or {}
    return Security(
        uid=main.get("runAsUser", spec["securityContext"].get("runAsUser")),
        read_only_root=main.get("readOnlyRootFilesystem", False),
    )


def service_of(body: Body) -> Service:
    """The record of a master Service; one that no DDPJob controls has an empty `job_uid`."""
    metadata, spec = body["metadata"], body["spec"]
    return Service(
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        job_uid=_controlling_job(metadata),
        selector=dict(spec.get("selector") or {}),
        publishes_not_ready=spec.get("publishNotReadyAddresses") is True,
    )


def object_of(watched: Watched, body: Body) -> OwnedObject:
    """The record of another object that is about a job.

    Raises:
        ValueError: if it is about none.
    """
    body = watched.trim(body)
    metadata = body["metadata"]
    labels = metadata.get("labels") or {}
    if not (job_name := watched.job_name(body)):
        raise ValueError(f"{watched.kind.kind} {metadata['name']} is about no DDPJob")
    attempt = labels.get(names.LABEL_ATTEMPT, "")
    return OwnedObject(
        kind=watched.kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        job_name=job_name,
        job_uid=_controlling_job(metadata),
        deleting="deletionTimestamp" in metadata,
        attempt=int(attempt) if attempt.isdecimal() else 0,
        labels=labels,
        annotations=metadata.get("annotations") or {},
        spec=body.get("spec") or {},
        status=body.get("status") or {},
    )


def _controlling_job(metadata: Body) -> str:
    """Uid of the DDPJob that controls the object; empty if none does."""
    controllers = (owner for owner in metadata.get("ownerReferences") or () if owner.get("controller"))
    return next((str(owner["uid"]) for owner in controllers if owner["kind"] == names.KIND), "")


def _owned_by(metadata: Body) -> str:
    job_uid = (metadata.get("labels") or {}).get(names.LABEL_JOB_UID)
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and owner["kind"] == names.KIND and owner["uid"] == job_uid:
            return str(job_uid)
    raise ValueError(f"pod {metadata['name']} is not controlled by the DDPJob that its label names")


def _number(labels: Body, label: str) -> int:
    value = labels.get(label, "")
    if not value.isdecimal():
        raise ValueError(f"label {label} is {value!r}; expected a whole number")
    return int(value)


def _named(items: Iterable[Body] | None, name: str) -> Body:
    return next((item for item in items or () if item["name"] == name), {})


def _is_true(conditions: Body, type_: str) -> bool:
    return type_ in conditions and conditions[type_]["status"] == "True"


def _time(text: str | None) -> float | None:
    return None if text is None else epoch_seconds(text)


def _placed(spec: Body, status: Body, conditions: Body) -> float | None:
    if _is_true(conditions, "PodScheduled"):
        return _time(conditions["PodScheduled"].get("lastTransitionTime"))
    # A kubelet that refuses a pod replaces its status, also the scheduler's condition, and says when that was.
    return _time(status.get("startTime")) if "nodeName" in spec else None


def _deletion(metadata: Body) -> Deletion | None:
    """The deletion as this version of the pod shows it. Only who saw earlier versions knows the first request."""
    timestamp, grace = _time(metadata.get("deletionTimestamp")), metadata.get("deletionGracePeriodSeconds")
    if timestamp is None:
        return None
    # A grace of 0 may be the kubelet's second request, long after the first one (seen on 1.36).
    return Deletion(deadline=timestamp, timestamp=timestamp, requested=timestamp - grace if grace else None)


def _exit(state: Body, known: Exit | None = None) -> Exit | None:
    """How the container of this state ended. Runtimes report death by signal n as exit code 128 + n."""
    terminated = state.get("terminated")
    if terminated is None:
        return None
    code = terminated["exitCode"]
    signal = terminated.get("signal") or (code - 128 if 128 < code < 128 + 65 else None)
    message = tail(terminated.get("message", "")).strip()
    return Exit(
        code=code,
        signal=signal,
        reason=terminated.get("reason", ""),
        message=message,
        parsed_message=known.parsed_message if known is not None and known.message == message else end_of_log(message),
        finished=_time(terminated.get("finishedAt")),
    )


def _failed_init(spec: Body, status: Body) -> Exit | None:
    """How an init container failed for good, so that the main container of its pod will never start."""
    for container in status.get("initContainerStatuses") or ():
        exit_ = _exit(container.get("state") or {})
        declared = _named(spec.get("initContainers"), container["name"])
        if exit_ is not None and exit_.code != 0 and not _is_restarted(declared, status):
            return replace(exit_, init_container=container["name"])
    return None


def _is_restarted(container: Body, status: Body) -> bool:
    """Whether the kubelet restarts this init container after a failure.

    It does so for a native sidecar (`restartPolicy: Always`), whose exit code never decides on its pod, and by rules of
    the container's own until the pod has failed. The pod's own policy is Never.
    """
    is_sidecar = container.get("restartPolicy") == "Always"
    return is_sidecar or (_has_own_restarts(container) and status.get("phase") != "Failed")


def _has_own_restarts(container: Body) -> bool:
    """Whether the kubelet may restart this container although the policy of its pod is Never."""
    return container.get("restartPolicy", "Never") != "Never" or bool(container.get("restartPolicyRules"))


def _none_can_run(spec: Body, status: Body) -> bool:
    """Whether every container has terminated; one that never started may still start.

    A container of the template may have a restart policy or restart rules of its own. The kubelet may start it again in
    the same pod until the pod is over, which its phase says.
    """
    statuses = status.get("containerStatuses") or ()
    init_statuses = status.get("initContainerStatuses") or ()
    if len(statuses) < len(spec["containers"]) or any(_has_own_restarts(declared) for declared in spec["containers"]):
        return False
    ended = all("terminated" in (s.get("state") or {}) for s in statuses)
    return ended and not any("running" in (s.get("state") or {}) for s in init_statuses)


def _waiting(spec: Body, status: Body, conditions: Body) -> Waiting | None:
    """Why the main container does not run yet, where the cluster says so."""
    scheduled = conditions.get("PodScheduled", {})
    if "nodeName" not in spec:
        if scheduled.get("status") == "False":
            reason = GATED if scheduled.get("reason") == GATED else "Unschedulable"
            gates = ", ".join(gate["name"] for gate in spec.get("schedulingGates") or ())
            message = f"held by scheduling gates: {gates}" if gates else scheduled.get("message", "")
            return Waiting(reason=reason, message=message)
        return None
    main = _named(status.get("containerStatuses"), names.MAIN_CONTAINER).get("state") or {}
    if "running" in main or "terminated" in main:
        return None  # another container that waits, a sidecar for example, does not hold it back
    statuses: list[Any] = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "") not in _ON_ITS_WAY:
            return Waiting(reason=waiting["reason"], message=waiting.get("message", ""))
    return None


def _disruption(conditions: Body, exit_: Exit | None) -> str:
    """Why the cluster ends the pod, by the condition of Kubernetes or that of Kueue.

    The condition of Kueue is set in `pkg/controller/jobs/pod/pod_controller.go`. Not if the program had ended long
    before, by two clocks: an eviction patches the condition before it deletes, also of such a pod. Only who saw an
    earlier version of the pod knows the order of what happened within the margin.
    """
    target = next((conditions[name] for name in _DISRUPTIONS if _is_true(conditions, name)), None)
    if target is None:
        return ""
    since = _time(target.get("lastTransitionTime"))
    if exit_ and exit_.finished and since and exit_.finished + CLOCK_MARGIN_SECONDS < since:
        return ""
    return f"{target.get('reason', 'Disrupted')}: {target.get('message', '')}".rstrip(": ")
