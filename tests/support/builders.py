"""Jobs and pods as decisions see them, in one line each. Times are seconds since the epoch; NOW is a fixed moment."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.actions import CreatePod, DeletePod, Plan
from ddpjob_operator.core.failure.log_parsing import end_of_log
from ddpjob_operator.core.model import Deletion, Exit, Job, Observed, Pod, Service
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.render.pods import name_of_pod, pod_name, spec_hash
from ddpjob_operator.core.render.service import selector, service_name

NOW = 1_800_000_000.0
#: What a program leaves that failed by itself, and one that lost its peer.
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    boom()\nValueError: boom\n'
ECHO = 'Traceback (most recent call last):\n  File "t.py", line 1\nRuntimeError: Connection closed by peer\n'


def job(status: DDPJobStatus | None = None, **spec: Any) -> Job:
    """A job of the digits recipe unless `command` says otherwise; `spec` is in camelCase."""
    program = {} if "command" in spec else {"trainer": {"recipe": "digits"}}
    return Job(
        namespace="default",
        name="job",
        uid="job-uid",
        resource_version="1",
        generation=1,
        deleting=False,
        spec=DDPJobSpec.model_validate({**program, **spec}),
        managed_by=spec.get("managedBy"),
        status=status or DDPJobStatus(),
    )


def pod(of: Job, rank: int = 0, attempt: int = 1, **changes: Any) -> Pod:
    """A running pod of the job; `changes` are fields of Pod, or of its deletion (see `changed`)."""
    assert of.spec is not None, "builders make valid jobs"
    running = Pod(
        name=pod_name(of.name, attempt, rank),
        uid=f"pod-uid-{attempt}-{rank}",
        job_uid=of.uid,
        attempt=attempt,
        rank=rank,
        spec_hash=spec_hash(of.spec),
        node=f"node-{rank}",
        phase="Running",
        reason="",
        message="",
        running=True,
        exit=None,
        all_ended=False,
        waiting=None,
        disruption="",
    )
    return changed(running, **changes)


def supervised(of: Job, rank: int = 0, **changes: Any) -> Pod:
    """A running pod of a job with restart.inPlace, by the number of its replacement in the status."""
    more = {"name": name_of_pod(of, rank), "uid": f"uid of {name_of_pod(of, rank)}"}
    return pod(
        of,
        rank,
        of.status.attempt,
        **{**more, "is_supervised": True, "replacement": of.status.replacement(rank), **changes},
    )


def changed(of_pod: Pod, **changes: Any) -> Pod:
    """The pod with these fields; those that begin with `deletion_` are fields of its deletion."""
    names = {
        "deletion_deadline": "deadline",
        "deletion_requested": "requested",
        "deletion_seen": "seen_while_current",
        "deletion_after_exit": "after_exit",
    }
    of_deletion = {names[key]: changes.pop(key) for key in names if key in changes}
    if of_deletion:
        changes["deletion"] = replace(of_pod.deletion or Deletion(deadline=NOW), **of_deletion)
    return replace(of_pod, **changes)


def ended(of: Job, rank: int = 0, attempt: int = 1, code: int = 0, message: str = "", **changes: Any) -> Pod:
    """A pod whose program ended with this code."""
    reason = changes.pop("exit_reason", "Completed" if code == 0 else "Error")
    seen_at = changes.pop("ended_seen", NOW - 10)
    exit_ = Exit(
        code=code,
        signal=code - 128 if code > 128 else None,
        reason=reason,
        message=message,
        parsed_message=end_of_log(message),
        seen=seen_at,
    )
    seen = {"running": False, "all_ended": True, "exit": exit_}
    return pod(of, rank, attempt, **{**seen, **changes})


def crashed(of: Job, rank: int = 0, attempt: int = 1, **changes: Any) -> Pod:
    """A pod whose program raised a ValueError."""
    return ended(of, rank, attempt, **{"code": 1, "message": TRACEBACK, **changes})


def pending(of: Job, rank: int = 0, **changes: Any) -> Pod:
    """A pod that has not started; it has no node unless `changes` name one."""
    return pod(of, rank, **{"node": None, "running": False, "phase": "Pending", **changes})


def service(of: Job, attempt: int = 1) -> Service:
    """The job's master Service, pointing at this attempt."""
    return Service(
        name=service_name(of.name),
        uid="service-uid",
        resource_version="1",
        job_uid=of.uid,
        selector=selector(of.uid, attempt),
    )


def observed(of: Job, *pods: Pod, **more: Any) -> Observed:
    """What is seen of the job, with its Service in place."""
    return Observed(
        job=of, pods=pods, **{"service": service(of, of.status.attempt), "trainer_image": "trainer:1", **more}
    )


def with_status(seen: Observed, status: DDPJobStatus) -> Observed:
    """The same with a status that was written."""
    return replace(seen, job=replace(seen.job, status=status))


def reconciled(seen: Observed, now: float = NOW) -> Observed:
    """The same after the status of its plan was written."""
    after = with_status(seen, plan(seen, now).status)
    begins = after.job.status.attempt != seen.job.status.attempt
    return replace(after, begun_attempt=after.job.status.attempt) if begins else after


def updated(seen: Observed, **fields: Any) -> Observed:
    """The same with other values of these fields of the status."""
    return with_status(seen, seen.job.status.model_copy(update=fields))


def edited(seen: Observed, **spec: Any) -> Observed:
    """The same after a user changed these fields of the spec, which are in snake_case."""
    assert seen.job.spec is not None, "builders make valid jobs"
    return replace(seen, job=replace(seen.job, spec=seen.job.spec.model_copy(update=spec)))


def in_attempt(of: Job, attempt: int) -> Job:
    """The job in a later attempt."""
    return replace(of, status=of.status.model_copy(update={"attempt": attempt}))


def running(of: Job, now: float = NOW) -> Observed:
    """The job with all its pods running and its status written."""
    assert of.spec is not None, "builders make valid jobs"
    return reconciled(observed(of, *(pod(of, rank, of.status.attempt) for rank in range(of.spec.nodes))), now)


def created(made: Plan) -> list[str]:
    """Names of the pods that a plan creates."""
    return [action.name for action in pods_created(made)]


def pods_created(made: Plan) -> list[CreatePod]:
    """The pods that a plan creates."""
    return [action for action in made.actions if isinstance(action, CreatePod)]


def environment(pod: Mapping[str, Any]) -> dict[str, str | None]:
    """The variables of a pod's main container by name; None for one whose value comes from elsewhere."""
    main = next(container for container in pod["spec"]["containers"] if container["name"] == names.MAIN_CONTAINER)
    return {variable["name"]: variable.get("value") for variable in main["env"]}


def deleted(made: Plan) -> Mapping[str, int | None]:
    """Names of the pods that a plan deletes, with their grace."""
    return {action.name: action.grace_seconds for action in made.actions if isinstance(action, DeletePod)}


def program(**spec: Any) -> Job:
    """A job that runs the user's own program."""
    return job(command=["python", "train.py"], **spec)


def broken(of: Job, *pods: Pod) -> Observed:
    """The running job with some of its pods replaced by these."""
    seen = running(of)
    by_name = {p.name: p for p in pods}
    return replace(seen, pods=tuple(by_name.get(p.name, p) for p in seen.pods))
