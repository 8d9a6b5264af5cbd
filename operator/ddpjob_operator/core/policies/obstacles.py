"""Why a gang is not running yet, in one reason and one sentence: what the cluster reports of all pods, put together."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.core.actions import ReadWarning
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import Observed, Pod, Rejection
from ddpjob_operator.core.refusals import refusal
from ddpjob_operator.core.scheduler_message import scheduler_message
from ddpjob_operator.core.untrusted import printable, tail
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.none import NO_PROVIDER
from ddpjob_operator.scheduling.pod_groups import scheduler_of
from ddpjob_operator.scheduling.quantities import number

_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})

#: No retry of the kubelet can help.
_NEVER_PULLED = frozenset({"InvalidImageName", "ErrImageNeverPull"})
#: A pod starts within seconds where its image is there; one that takes longer may have something to complain of.
QUIET_START_SECONDS = 10.0

_IMAGE = re.compile(r'image "([^"]+)"')
_QUOTA = re.compile(r"exceeded quota: ([^,\s]+), requested: (\S+), used: (\S+), limited: (\S+)")


def explain_wait(observed: Observed, gang: Gang, provider: Provider = NO_PROVIDER) -> tuple[Reason, str]:
    """The reason and the message of what the gang waits for; the obstacle that explains most comes first."""
    spec = observed.job.spec_of_attempt
    held_nodes = _held_nodes(gang, spec.least_nodes if spec is not None and provider.places_fewer else gang.num_nodes)
    existing = {pod.name for pod in gang.current.values()}
    refused = {name: why for name, why in observed.rejections.items() if name not in existing}
    if refused:
        name, why = min(refused.items(), key=lambda item: (item[1].is_terminating, item[1].by_failure, item[0]))
        return (
            (Reason.STOPPING, printable(why.message)) if why.is_terminating else _refused(gang, name, why, held_nodes)
        )
    if gang.missing and spec is not None and (hold := provider.hold(observed, spec)) is not None:
        return hold
    if gang.missing:
        return Reason.CREATING, f"{len(gang.missing)} of {gang.num_nodes} pods do not exist yet"
    starting = gang.starting
    if deletion := deletion_message(starting):
        return Reason.STARTING, deletion
    if spec is not None and starting and (wait := provider.explain(observed, spec, gang)) is not None:
        return wait
    held = [pod for pod in gang.current.values() if pod.waiting]
    if not held:
        unplaced = sum(pod.node is None for pod in starting)
        if unplaced:
            by = f"the scheduler {scheduler_of(spec, provider.scheduler)}" if spec is not None else "a scheduler"
            return Reason.STARTING, printable(
                f"{unplaced} of {gang.num_nodes} pods have not been considered by {by} yet{_awaited_claims(spec)}"
            )
        warning = next((observed.warnings[pod.uid] for pod in starting if pod.uid in observed.warnings), None)
        if warning is not None:
            return Reason.CONTAINER_CONFIG, f"{len(starting)} of {gang.num_nodes} pods wait: {printable(warning)}"
        return Reason.STARTING, f"{len(starting)} of {gang.num_nodes} pods are starting"
    reasons = Counter(_reason(pod) for pod in held)
    reason, count = min(reasons.items(), key=lambda item: (item[0] != Reason.IMAGE_PULL, -item[1], item[0]))
    message = _waiting_message(observed, _typical([pod for pod in held if _reason(pod) == reason]))
    if reason == Reason.UNSCHEDULABLE:
        return reason, f"{count} of {gang.num_nodes} pods have no node: {message}{held_nodes}"
    return reason, f"{count} of {gang.num_nodes} pods wait: {message}"


def _awaited_claims(spec: DDPJobSpec | None) -> str:
    """What a scheduler waits for in silence: it considers a pod once the claims of its devices exist."""
    pod = spec.template.spec if spec is not None and spec.template else None
    claims = (pod.resource_claims if pod else None) or ()
    kinds = {"resourceClaimTemplateName": "ResourceClaimTemplate", "resourceClaimName": "ResourceClaim"}
    names = sorted({f"{kinds[key]} {claim[key]}" for claim in claims for key in kinds if claim.get(key)})
    return f": it waits for their claims, so these must exist in the namespace: {', '.join(names)}" if names else ""


def never_starts(gang: Gang) -> str | None:
    """What the first pod says whose image can never be pulled; None without such a pod."""
    pods = (pod for pod in gang.starting if pod.waiting and pod.node and pod.waiting.reason in _NEVER_PULLED)
    return next((printable(f"{pod.waiting.reason}: {pod.waiting.message}") for pod in pods if pod.waiting), None)


def deletion_message(pods: Iterable[Pod]) -> str | None:
    """The message while the first of these pods that is being deleted has not ended; None while none is deleted."""
    going = next((pod for pod in pods if pod.deletion is not None and pod.exit is None), None)
    if going is None:
        return None
    why = f": {printable(going.disruption)}" if going.disruption else ""
    return f"waiting for pod {going.name}, which is being deleted, to stop{why}"


def warning_lookup(gang: Gang, since: float | None, now: float) -> ReadWarning | None:
    """What to look up for a gang that has had its nodes since then and does not start, while no pod's status says why."""
    starting = gang.starting
    if since is None or not starting or any(pod.waiting for pod in starting) or now < since + QUIET_START_SECONDS:
        return None
    return ReadWarning(pod=starting[0].name, uid=starting[0].uid)


def _refused(gang: Gang, name: str, why: Rejection, held_nodes: str) -> tuple[Reason, str]:
    quota = _QUOTA.search(message := tail(why.message))
    if quota is None and why.is_by_quota:
        return Reason.QUOTA_EXCEEDED, printable(message)
    if quota is None:
        return Reason.POD_REJECTED, refusal(name, why)
    counts = [_counts(part) for part in quota.groups()[1:]]
    full = "; ".join(
        f"{used} of {limit} {what} used, {wanted} more wanted by each pod"
        for what, wanted in counts[0].items()
        if (used := counts[1].get(what)) and (limit := counts[2].get(what))
    )
    missing = f"{len(gang.missing)} of {gang.num_nodes} pods"
    never = _never_fits(gang, quota[1], counts)
    return Reason.QUOTA_EXCEEDED, printable(f"{missing} exceed quota {quota[1]}: {full}{held_nodes}{never}")


def _never_fits(gang: Gang, quota: str, counts: Sequence[Mapping[str, str]]) -> str:
    """What the gang alone asks for in excess of the quota, so that no end of other pods helps; empty if it fits."""
    for what, wanted in counts[0].items():
        limit = counts[2].get(what)
        needed = number(wanted) * gang.num_nodes
        if limit is not None and needed > number(limit):
            return f"; the job alone needs {needed.normalize():f} {what}, so it can never fit: ask for less, or have quota {quota} raised"
    return ""


def _counts(text: str) -> dict[str, str]:
    """`pods=1,requests.memory=1Gi` by resource."""
    return {what: number for what, _, number in (part.partition("=") for part in text.split(","))}


def _held_nodes(gang: Gang, least_nodes: int) -> str:
    if not gang.num_placed:
        return ""
    then = "on which the job continues" if gang.num_placed >= least_nodes else "to be released"
    return f"; pods with a node: {gang.num_placed}, {then} if the others find none"


def _reason(pod: Pod) -> Reason:
    assert pod.waiting is not None, "the caller passes a pod that waits"
    if pod.node is None:
        return Reason.UNSCHEDULABLE
    return Reason.IMAGE_PULL if pod.waiting.reason in _IMAGE_REASONS else Reason.CONTAINER_CONFIG


def _typical(pods: Sequence[Pod]) -> Pod:
    """A pod that waits with the most common message. Of thousands of pods only its message has to be made printable."""
    messages = [_message(pod) for pod in pods]
    most_common, _ = min(Counter(messages).items(), key=lambda item: (-item[1], item[0]))
    return pods[messages.index(most_common)]


def _message(pod: Pod) -> str:
    assert pod.waiting is not None, "the caller passes a pod that waits"
    return pod.waiting.message or pod.waiting.reason


def _waiting_message(observed: Observed, pod: Pod) -> str:
    message = tail(_message(pod))
    if pod.node is not None:
        return printable(_pull_message(message) if _reason(pod) == Reason.IMAGE_PULL else message)
    return scheduler_message(observed.job.spec, message)


def _pull_message(message: str) -> str:
    """The image and the innermost cause; the runtime names every layer between them."""
    image = _IMAGE.search(message)
    if image is None:
        return message
    layers = [layer for layer in message[image.end() :].split(": ") if layer]
    cause = ": ".join(layers[-2:])
    return f"image {image[1]} cannot be pulled" + (f": {cause}" if cause else "")
