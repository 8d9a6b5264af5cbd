"""Whether jobs can run on a cluster: what is read of it, and what follows from that.

`gather` reads, each part by itself, so that a missing right costs one finding and not the others. `findings` is pure. The type
and the schedulers are imported by what uses them, since the first answer of the server does not depend on them.
"""

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ddpjob_operator.api import names
from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.core.times import epoch_seconds
from ddpjob_operator.core.untrusted import printable

if TYPE_CHECKING:
    from ddpjob_operator.transport.client import Client as Transport

Body = Mapping[str, Any]
T = TypeVar("T")

#: What the commands and `kubectl apply` need in the namespace of the jobs: verb, group, resource.
RIGHTS: Final = (
    *((verb, names.GROUP, names.PLURAL) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    ("patch", names.GROUP, f"{names.PLURAL}/scale"),
    ("list", "", "pods"),
    ("get", "", "pods/log"),
    ("list", "", "events"),
    ("create", "", "configmaps"),
    ("patch", "", "configmaps"),
    ("get", "", "pods/exec"),
    ("create", "", "pods/exec"),
)
#: Missing fields of the served type that are named.
_MAX_FIELDS = 5
_OPERATOR = "app.kubernetes.io/name=ddpjob-operator"
_CACHE = re.compile(r"^\s*cache\s+(\d+)\s*(\{[^}]*\})?", re.MULTILINE)
_DENIAL = re.compile(r"denial\s+\d+\s+(\d+)")
#: Kubernetes removes a PodGroup once its last pod has ended, which has this long for it by default and more.
_GONE_SECONDS = 600
#: Ranks look up rank 0 before its pod has an address; a denial that is cached for longer than this delays them.
_MAX_DENIAL_SECONDS = 5


class State(StrEnum):
    """What a finding means for jobs."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the result."""

    subject: str
    state: State
    text: str


_Found = tuple[State, str]


@dataclass(slots=True)
class Facts:
    """What was read; None for what the user may not read."""

    namespace: str
    version: str = ""
    crd_versions: Sequence[str] = ()
    schemas: Mapping[str, Body] | None = None
    """The served schemas of the DDPJob type's group, by name."""
    groups: dict[str, Sequence[str]] = field(default_factory=dict)
    rights: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    operator_pods: Sequence[Body] | None = None
    may_make_policies: bool | None = None
    """Whether the operator may create NetworkPolicies in the namespace."""
    pod_groups: Sequence[Body] | None = None
    """Kubernetes' own PodGroups of the namespace, where it serves them."""
    nodes: Sequence[Body] | None = None
    claims: Sequence[Body] | None = None
    namespace_body: Body | None = None
    corefile: str | None = None


async def gather(api: "Transport", namespace: str) -> Facts:
    """Read the cluster.

    Raises:
        ApiError: the server cannot be reached, or does not accept the credential.
    """
    from ddpjob_operator.transport.resources import CONFIG_MAPS, NODES, PODS, Resource

    async def listed(resource: Resource, where: str | None, labels: str = "") -> list[Body]:
        return [body async for page in api.pages(resource, where, labels) for body in page.items]

    facts = Facts(namespace=namespace, version=await api.server_version())
    facts.crd_versions = await api.group_versions(names.GROUP)
    if names.VERSION in facts.crd_versions:
        openapi = Resource(prefix="/openapi/v3/apis", plural=names.GROUP)
        document = await _if_allowed(api.get(openapi, None, names.VERSION))
        facts.schemas = None if document is None else document["components"]["schemas"]
    from ddpjob_operator.scheduling.discovery import CANDIDATES, NATIVE

    facts.groups = {group: await api.group_versions(group) for group in {candidate.group for candidate in CANDIDATES}}
    if version := NATIVE.version_of(facts.groups[NATIVE.group]):
        pod_groups = Resource.of_version(f"{NATIVE.group}/{version}", "podgroups")
        facts.pod_groups = await _if_allowed(listed(pod_groups, namespace))
    reviews = Resource(prefix="/apis/authorization.k8s.io/v1", plural="selfsubjectaccessreviews")
    for verb, group, resource in RIGHTS:
        plural, _, subresource = resource.partition("/")
        attributes = {
            "namespace": namespace,
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
        }
        spec = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
        answer = await api.create(reviews, None, review)
        facts.rights[verb, group, resource] = bool(answer["status"].get("allowed"))
    facts.operator_pods = await _if_allowed(listed(PODS, None, _OPERATOR))
    if facts.operator_pods:
        facts.may_make_policies = await _may_make_policies(api, facts.operator_pods[0], namespace)
    facts.nodes = await _if_allowed(listed(NODES, None))
    claims = Resource(prefix="/api/v1", plural="persistentvolumeclaims")
    facts.claims = await _if_allowed(listed(claims, namespace))
    namespaces = Resource(prefix="/api/v1", plural="namespaces")
    facts.namespace_body = await _if_allowed(api.get(namespaces, None, namespace))
    coredns = await _if_allowed(api.get(CONFIG_MAPS, "kube-system", "coredns"))
    facts.corefile = None if coredns is None else (coredns.get("data") or {}).get("Corefile")
    return facts


async def _may_make_policies(api: "Transport", operator: Body, namespace: str) -> bool | None:
    from ddpjob_operator.transport.resources import Resource

    home = operator["metadata"]["namespace"]
    account = operator["spec"].get("serviceAccountName", "default")
    spec = {
        "user": f"system:serviceaccount:{home}:{account}",
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{home}", "system:authenticated"],
        "resourceAttributes": {
            "namespace": namespace,
            "verb": "create",
            "group": "networking.k8s.io",
            "resource": "networkpolicies",
        },
    }
    reviews = Resource(prefix="/apis/authorization.k8s.io/v1", plural="subjectaccessreviews")
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await _if_allowed(api.create(reviews, None, review))
    return None if answer is None else bool(answer["status"].get("allowed"))


async def _if_allowed(reading: Awaitable[T]) -> T | None:
    """What is read; None if the user may not, or if it does not exist."""
    from ddpjob_operator.transport.errors import NotFoundError, RejectedError

    try:
        return await reading
    except (NotFoundError, RejectedError):
        return None


def _api_server(facts: Facts) -> _Found:
    return State.OK, facts.version


def _crd(facts: Facts) -> _Found:
    if not facts.crd_versions:
        return State.PROBLEM, "the cluster does not serve DDPJobs; install the chart ddpjob-operator"
    if names.VERSION not in facts.crd_versions:
        served = ", ".join(facts.crd_versions)
        text = f"the cluster serves {served}, this command uses {names.VERSION}; install the release of this command that matches the operator"
        return State.PROBLEM, text
    missing = _missing_fields(facts)
    if missing is None:
        return State.OK, f"{names.API_VERSION} is served; its schema is not visible to you"
    if missing:
        shown = ", ".join(missing[:_MAX_FIELDS])
        more = f" and {len(missing) - _MAX_FIELDS} more" if len(missing) > _MAX_FIELDS else ""
        text = (
            f"the type that the cluster serves is older than this command: it has no {shown}{more}. An operator of this release"
            " forgets what it cannot store there, such as counters of restarts: upgrade the CRD with it (helm upgrade with"
            " crds.enabled=true, or kubectl apply --server-side --force-conflicts -f manifests/crd/ddpjob.yaml). If the operator is"
            " older, too, install the release of this command that matches it"
        )
        return State.PROBLEM, text
    return State.OK, f"{names.API_VERSION} is served, with all fields of this release"


def _missing_fields(facts: Facts) -> list[str] | None:
    """The fields of this release that the served type does not have; None if its schema cannot be read."""
    from ddpjob_operator.api.crd import field_paths, fields

    for schema in (facts.schemas or {}).values():
        kinds = schema.get("x-kubernetes-group-version-kind") or ()
        if any(
            (kind["group"], kind["version"], kind["kind"]) == (names.GROUP, names.VERSION, names.KIND) for kind in kinds
        ):
            return sorted(fields() - field_paths(schema))
    return None


def _operator(facts: Facts) -> _Found:
    if facts.operator_pods is None:
        text = "you may not list pods in all namespaces; if a new job has no status after a minute, no operator watches its namespace"
        return State.NOTE, text
    ready = [pod for pod in facts.operator_pods if _is_ready(pod)]
    if not ready:
        found = (
            "none of its pods is ready" if facts.operator_pods else "no pod; if the chart ddpjob-operator is installed"
        )
        return State.PROBLEM, f"{found}, look at its Deployment: kubectl get deployment -A -l {_OPERATOR}"
    described = ", ".join(
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']} ({pod['spec']['containers'][0]['image']})"
        for pod in ready
    )
    return State.OK, described


def _is_ready(pod: Body) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _rights(facts: Facts) -> _Found:
    missing = [f"{verb} {resource}" for (verb, _, resource), allowed in facts.rights.items() if not allowed]
    if missing:
        text = (
            f"in namespace {facts.namespace} you may not {', '.join(missing)}; ask an administrator for the role edit"
        )
        return State.PROBLEM, text
    return State.OK, f"all that the commands need in namespace {facts.namespace}"


def _gpus(facts: Facts) -> _Found:
    if facts.nodes is None:
        return State.NOTE, "you may not list nodes"
    found: dict[str, list[int]] = {}
    for node in facts.nodes:
        for resource, amount in ((node.get("status") or {}).get("allocatable") or {}).items():
            if resource.endswith("/gpu") or "/mig-" in resource:
                found.setdefault(resource, []).append(int(amount))
    if not facts.nodes:
        return State.PROBLEM, "the cluster has no nodes, so no pod can run"
    if not found:
        text = f"{_nodes(len(facts.nodes))}, none of which shows GPUs; without a device plugin, jobs can train on CPUs only"
        return State.NOTE, text
    described = "; ".join(
        f"{resource}: {sum(amounts)} on {_nodes(len(amounts))}, at most {max(amounts)} on one"
        for resource, amounts in sorted(found.items())
    )
    return State.OK, described


def _nodes(number: int) -> str:
    return f"{number} node{'s' if number > 1 else ''}"


def _schedulers(facts: Facts) -> _Found:
    from ddpjob_operator.scheduling.discovery import AUTO, choose

    setting = _setting(facts, "scheduling-provider")
    try:
        choice = choose(setting or AUTO, facts.groups)
    except LookupError as error:
        return State.PROBLEM, f"{error}; the operator waits for that and runs no job"
    name = choice.provider.name
    why = f"setting {setting}" if setting else "if the operator's setting is auto"
    if name is ProviderName.NONE:
        text = f"provider {name} ({why}): {choice.why}; a gang that fits only in part releases its nodes for a while"
        return State.NOTE, text
    if left := [body["metadata"]["name"] for body in facts.pod_groups or () if _should_be_gone(body["metadata"])]:
        text = (
            f"PodGroup {left[0]} was deleted more than {_GONE_SECONDS // 60} minutes ago and is still there; if none of its pods"
            " runs, enable the feature gate GenericWorkload in the controller manager, which removes PodGroups"
        )
        return State.NOTE, text
    text = f"provider {name} ({why}): {choice.why}; the operator's log shows whether it has the rights to use it"
    return State.OK, text


def _should_be_gone(metadata: Mapping[str, Any]) -> bool:
    deleted = metadata.get("deletionTimestamp")
    return deleted is not None and epoch_seconds(deleted) + _GONE_SECONDS < time.time()


def _setting(facts: Facts, option: str) -> str | None:
    """What a running operator has for an option of its command line; None where it is not visible."""
    for pod in facts.operator_pods or ():
        for argument in pod["spec"]["containers"][0].get("args") or ():
            name, _, value = str(argument).partition("=")
            if name == f"--{option}":
                return value
    return None


def _storage(facts: Facts) -> _Found:
    if facts.claims is None:
        return State.NOTE, "you may not list PersistentVolumeClaims"
    shared = [
        claim["metadata"]["name"]
        for claim in facts.claims
        if "ReadWriteMany" in (claim["spec"].get("accessModes") or ())
    ]
    if not shared:
        text = f"namespace {facts.namespace} has no claim with ReadWriteMany: checkpoints of several nodes need one, or checkpoint.uri"
        return State.NOTE, text
    return State.OK, f"claims with ReadWriteMany: {', '.join(shared)}"


def _pod_security(facts: Facts) -> _Found:
    if facts.namespace_body is None:
        return State.NOTE, f"namespace {facts.namespace} does not exist, or you may not read it"
    labels = facts.namespace_body["metadata"].get("labels") or {}
    level = labels.get("pod-security.kubernetes.io/enforce", "the cluster's default level")
    text = f"namespace {facts.namespace} enforces {level}; securityProfile restricted complies with every level"
    return State.OK, text


def _network_policies(facts: Facts) -> _Found:
    open_ranks = "every pod that reaches a rank can join its training"
    if _setting(facts, "network-policies") == "none":
        return State.NOTE, f"the operator creates none (chart value networkPolicy.jobs); {open_ranks}"
    if facts.operator_pods == []:
        return State.NOTE, f"no operator that could create them was found; {open_ranks}"
    if facts.may_make_policies is None:
        text = "you do not have the right to check whether the operator may create them; the operator logs it when it starts"
        return State.NOTE, text
    if not facts.may_make_policies:
        return State.NOTE, f"the operator may not create them in namespace {facts.namespace}; {open_ranks}"
    text = "only pods of the same job can connect to ranks, if the network of the cluster enforces NetworkPolicies"
    return State.OK, text


def _dns(facts: Facts) -> _Found:
    if facts.corefile is None:
        return State.NOTE, "the ConfigMap kube-system/coredns does not exist, or you may not read it"
    match = _CACHE.search(facts.corefile)
    if match is None:
        return State.OK, "CoreDNS does not cache failed lookups"
    denial = _DENIAL.search(match[2] or "")
    seconds = int(denial[1]) if denial else int(match[1])
    if "disable denial" in (match[2] or "") or seconds <= _MAX_DENIAL_SECONDS:
        return State.OK, "CoreDNS caches failed lookups for at most 5 s"
    text = (
        f"CoreDNS caches failed lookups for up to {seconds} s, so the first connection of ranks may take as long; add"
        " `disable denial cluster.local` to its cache"
    )
    return State.NOTE, text


_CHECKS: Final[Mapping[str, Callable[[Facts], _Found]]] = {
    "API server": _api_server,
    "DDPJob type": _crd,
    "operator": _operator,
    "rights": _rights,
    "GPUs": _gpus,
    "scheduling": _schedulers,
    "checkpoints": _storage,
    "pod security": _pod_security,
    "network policies": _network_policies,
    "DNS": _dns,
}


def findings(facts: Facts) -> list[Finding]:
    """What the facts mean for jobs in the namespace, without control characters: names and labels are other people's."""
    found = ((subject, *check(facts)) for subject, check in _CHECKS.items())
    return [Finding(subject=subject, state=state, text=printable(text)) for subject, state, text in found]
