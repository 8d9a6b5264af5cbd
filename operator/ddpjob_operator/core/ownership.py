"""The owner reference and the labels that make an object one of the job's."""

from typing import Any

from ddpjob_operator.api import names
from ddpjob_operator.core.model import Job


def owner_reference(job: Job) -> dict[str, Any]:
    """The owner reference that makes an object a child of the job, so that it is deleted with the job even without an operator."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,  # `kubectl delete --cascade=foreground` waits for it.
    }


def common_labels(job: Job) -> dict[str, str]:
    """Labels of everything that belongs to the job."""
    return {names.MANAGED_BY: names.MANAGER, names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid}


def metadata_of(job: Job, name: str) -> dict[str, Any]:
    """The metadata of an object of the job with this name."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": common_labels(job),
        "ownerReferences": [owner_reference(job)],
    }
