"""The master Service: a stable name for rank 0 of the current attempt, also after its pod was replaced.

Headless, since a ClusterIP costs about a second at the first connection (kube-proxy programs it late and the first SYN
is lost). Not-ready addresses are published: rank 0 is wanted before it is Ready. It selects one pod of one attempt only,
since a failed pod stays in the endpoints until some other pod of the Service changes, and one on a lost node for longer.
"""

from ddpjob_operator.api import names
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import CreateObject, PatchObject
from ddpjob_operator.core.model import SERVICE, Body, Job, Service
from ddpjob_operator.core.ownership import metadata_of


def service_name(job_name: str) -> str:
    """Name of the job's master Service."""
    return f"{job_name}-master"


def master_address(namespace: str, job_name: str) -> str:
    """Name under which every rank finds rank 0."""
    return f"{service_name(job_name)}.{namespace}.svc"


def selector(job_uid: str, attempt: int, replacement: int = 0) -> dict[str, str]:
    """Labels that this pod of rank 0 alone carries among those that exist by now; the first one has none for its replacement."""
    labels = {names.LABEL_JOB_UID: job_uid, names.LABEL_ATTEMPT: str(attempt), names.LABEL_RANK: "0"}
    return labels | ({names.LABEL_REPLACEMENT: str(replacement)} if replacement else {})


def ensure_service(job: Job, spec: DDPJobSpec, observed: Service | None) -> tuple[CreateObject | PatchObject, ...]:
    """The action that makes the Service point at the current pod of rank 0; none if it does. It never points at an older one again."""
    attempt, replacement = job.status.attempt, job.status.replacement(0)
    if observed is None or observed.job_uid != job.uid:  # an earlier job's of the same name is about to go
        return (CreateObject(kind=SERVICE, name=service_name(job.name), body=_body(job, spec)),)
    wanted = selector(job.uid, attempt, replacement)
    is_right = observed.selector == wanted and observed.publishes_not_ready
    if _pod_of(observed) > (attempt, replacement) or is_right:
        return ()
    # A merge patch keeps what it does not name: a key that somebody added is named with null.
    replaced = {key: wanted.get(key) for key in {*observed.selector, *wanted}}
    spec_of_service: Body = {"selector": replaced, "publishNotReadyAddresses": True}
    patch: Body = {"metadata": {"uid": observed.uid}, "spec": spec_of_service}
    return (PatchObject(kind=SERVICE, name=observed.name, resource_version=observed.resource_version, patch=patch),)


def _pod_of(service: Service) -> tuple[int, int]:
    """Attempt and replacement of the pod that the Service points at."""
    attempt, replacement = (service.selector.get(label, "") for label in (names.LABEL_ATTEMPT, names.LABEL_REPLACEMENT))
    return (
        int(attempt) if attempt.isdecimal() else 0,
        int(replacement) if replacement.isdecimal() else 0,
    )


def _body(job: Job, spec: DDPJobSpec) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(job, service_name(job.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(job.uid, job.status.attempt, job.status.replacement(0)),
            "ports": [{"name": "master", "port": spec.master_port}],
        },
    }
