"""The job's NetworkPolicy: its ranks accept connections from pods of the same job alone.

The store of torch.distributed, gloo and NCCL have no authentication, so whoever reaches a rank can join or disturb the
training. The policy concerns incoming connections only; name resolution, data and object stores stay reachable.

The policy selects peers by a label and without a namespace, so pods of other namespaces are never among them, whatever their
labels are. The operator reads logs through the API server and needs no connection to a rank. Policies add up: another one in
the namespace can admit more, such as a Prometheus server, and the operator never changes one that exists.
"""

from ddpjob_operator.api import names
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import CreateObject, DeleteObject
from ddpjob_operator.core.model import Body, Job, Kind, Observed, Watched
from ddpjob_operator.core.ownership import metadata_of

NETWORK_POLICY = Kind(api_version="networking.k8s.io/v1", kind="NetworkPolicy", plural="networkpolicies")
#: How the operator watches the policies that it has created.
WATCHED_POLICIES = Watched(kind=NETWORK_POLICY)


def policy_name(job_name: str) -> str:
    """Name of the job's NetworkPolicy."""
    return f"{job_name}-ranks"


def network_policy(job: Job) -> Body:
    """The policy as JSON."""
    pods_of_the_job = {"podSelector": {"matchLabels": {names.LABEL_JOB_UID: job.uid}}}
    return {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.kind,
        "metadata": metadata_of(job, policy_name(job.name)),
        "spec": {**pods_of_the_job, "policyTypes": ["Ingress"], "ingress": [{"from": [pods_of_the_job]}]},
    }


def ensure_network_policy(observed: Observed, spec: DDPJobSpec) -> tuple[CreateObject | DeleteObject, ...]:
    """The action that creates the policy, or that deletes it where the job has opted out; none if there is nothing to do."""
    if not observed.makes_network_policies:
        return ()
    job = observed.job
    # A copy of it, from a backup for example, has its labels without being it.
    own = (found for found in observed.objects if found.kind == NETWORK_POLICY and found.job_uid == job.uid)
    existing = next(own, None)
    if spec.network_policy and existing is None:
        return (CreateObject(kind=NETWORK_POLICY, name=policy_name(job.name), body=network_policy(job)),)
    if not spec.network_policy and existing is not None and not existing.deleting:
        return (DeleteObject(kind=NETWORK_POLICY, name=existing.name, uid=existing.uid),)
    return ()
