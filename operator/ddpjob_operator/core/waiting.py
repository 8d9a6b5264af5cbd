"""Why a gang is not running yet, in one reason and one sentence."""

from collections import Counter

from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.last_words import printable
from ddpjob_operator.core.model import Observed, Pod

_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})


def explain(seen: Observed, gang: Gang) -> tuple[Reason, str]:
    """What the gang waits for, the most telling obstacle first."""
    pods, num_nodes = tuple(gang.current.values()), gang.num_nodes
    existing = {pod.name for pod in pods}
    refused = {name: words for name, words in seen.rejections.items() if name not in existing}
    if refused:
        name, words = min(refused.items())
        return Reason.POD_REJECTED, f"the API server refuses {name}: {printable(words)}"
    if gang.missing:
        return Reason.CREATING, f"{len(gang.missing)} of {num_nodes} pods are still to be created"
    held = [pod for pod in pods if pod.waiting]
    if not held:
        waiting = sum(not pod.running and pod.exit is None for pod in pods)
        return Reason.STARTING, f"{waiting} of {num_nodes} pods are starting"
    reasons = Counter(_reason(pod) for pod in held)
    reason, count = min(reasons.items(), key=lambda item: (item[0] != Reason.IMAGE_PULL, -item[1], item[0]))
    words = next(pod.waiting.message or pod.waiting.reason for pod in held if pod.waiting and _reason(pod) == reason)
    return reason, f"{count} of {num_nodes} pods wait: {printable(words)}"


def _reason(pod: Pod) -> Reason:
    assert pod.waiting is not None, "asked about a pod that waits"
    if pod.node is None:
        return Reason.UNSCHEDULABLE
    return Reason.IMAGE_PULL if pod.waiting.reason in _IMAGE_REASONS else Reason.CONTAINER_CONFIG
