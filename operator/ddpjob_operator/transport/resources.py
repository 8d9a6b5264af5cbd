"""The kinds of objects that the operator deals with, and where the API server keeps them."""

from dataclasses import dataclass
from typing import Self

from ddpjob_operator.api import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A kind of objects."""

    prefix: str
    plural: str

    @classmethod
    def of_version(cls, api_version: str, plural: str) -> Self:
        """The kind with this plural in this API version, such as v1 or scheduling.k8s.io/v1alpha2."""
        return cls(prefix=f"/{'apis' if '/' in api_version else 'api'}/{api_version}", plural=plural)

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of all objects, of those of one namespace, of one object, or of a part of it."""
        parts = [self.prefix]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/".join(parts)


PODS = Resource(prefix="/api/v1", plural="pods")
CONFIG_MAPS = Resource(prefix="/api/v1", plural="configmaps")
SERVICES = Resource(prefix="/api/v1", plural="services")
NODES = Resource(prefix="/api/v1", plural="nodes")
EVENTS = Resource(prefix="/api/v1", plural="events")
LEASES = Resource(prefix="/apis/coordination.k8s.io/v1", plural="leases")
ACCESS_REVIEWS = Resource(prefix="/apis/authorization.k8s.io/v1", plural="selfsubjectaccessreviews")
DDPJOBS = Resource(prefix=f"/apis/{names.API_VERSION}", plural=names.PLURAL)

#: Selects what the operator has created: the label is ours alone, while policies rewrite `app.kubernetes.io/managed-by`.
MANAGED = names.LABEL_JOB_UID


def of_job(uid: str, attempt: int | None = None) -> str:
    """Label selector of everything that the operator has created for one job, or for one attempt of it."""
    job = f"{names.LABEL_JOB_UID}={uid}"
    return job if attempt is None else f"{job},{names.LABEL_ATTEMPT}={attempt}"
