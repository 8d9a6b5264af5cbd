"""A job that is suspended, one whose spec was edited meanwhile, and one whose pods were created for another provider or minNodes."""

from ddpjob_operator.api import names
from ddpjob_operator.api.names import ConditionType, Phase, Reason
from ddpjob_operator.core.decision import Advice, StartNextAttempt, StaySuspended, Suspend
from ddpjob_operator.core.gang import is_current
from ddpjob_operator.core.model import OwnedObject
from ddpjob_operator.core.render.pods import spec_hash
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.stopping import may_still_run, next_overdue, node_lookups


def stop_while_suspended(situation: Situation) -> Advice:
    """Stop every pod, with its own grace to save its work, and start none until spec.suspend is false."""
    if not situation.spec.suspend:
        return Advice()
    gang = situation.gang
    if gang.current or situation.status.condition(ConditionType.CREATED) or _objects(situation):
        return Advice(decision=Suspend(message="spec.suspend is true; the pods are being stopped"))
    stopping = may_still_run(situation.observed, gang.old, situation.now)
    message = "spec.suspend is true" + (f"; pods that are still stopping: {len(stopping)}" if stopping else "")
    return Advice(
        decision=StaySuspended(message=message),
        lookups=node_lookups(situation.status, (*gang.old, *gang.placeholders), situation.now),
        wake_at=next_overdue([*stopping, *gang.placeholders], situation.now),
    )


def _objects(situation: Situation) -> list[OwnedObject]:
    """The objects of the current attempt, such as a PodGroup: it is immutable, and the spec may be edited."""
    job = situation.job
    return [o for o in situation.observed.objects if o.job_uid == job.uid and o.attempt == job.status.attempt]


def replace_after_an_edit(situation: Situation) -> Advice:
    """Replace a gang whose pods were rendered from an earlier spec."""
    if not is_edited(situation):
        return Advice()
    message = "the pods were created from an earlier spec; they are being replaced"
    return Advice(decision=StartNextAttempt(phase=Phase.RESTARTING, reason=Reason.SPEC_CHANGED, message=message))


def replace_after_a_change_of_provider(situation: Situation) -> Advice:
    """Replace a gang that no scheduler may place any more: no pod has a node, and all were created for another provider."""
    pods, configured = situation.gang.current.values(), situation.configured_provider.name
    others = {pod.scheduling for pod in pods} - {"", configured}
    if not others or any(pod.node is not None for pod in pods):
        return Advice()
    message = (
        f"the pods were created for the scheduling provider {', '.join(sorted(others))}, and the operator now uses"
        f" {configured}: they are being replaced"
    )
    decision = StartNextAttempt(
        phase=Phase.PENDING, reason=Reason.GANG_GIVEN_BACK, message=message, releases_partial_gang=True
    )
    return Advice(decision=decision)


def replace_after_a_change_of_min_nodes(situation: Situation) -> Advice:
    """Replace a gang that waits for its nodes in a group of another least number, unless the provider changes that of the group.

    Not one that waits for the node of a replaced pod: its group has had its nodes, and the other pods have work to save.
    """
    spec, num_placed = situation.spec, situation.gang.num_placed
    asked = {found.annotations.get(names.ANNOTATION_LEAST_NODES, str(spec.nodes)) for found in _objects(situation)}
    has_had_nodes = situation.clocks.scheduled is not None or situation.status.replaced_pods
    # Of a gang that has too few nodes for its new number, these would be held until the others come.
    is_changed = situation.provider.changes_least_nodes and not 0 < num_placed < spec.least_nodes
    if asked <= {str(spec.least_nodes)} or has_had_nodes or is_changed:
        return Advice()
    message = (
        f"the pods wait in a group of which {asked.pop()} get nodes together, and these are {spec.least_nodes} now: they are being"
        " replaced"
    )
    decision = StartNextAttempt(
        phase=Phase.PENDING, reason=Reason.GANG_GIVEN_BACK, message=message, releases_partial_gang=True
    )
    return Advice(decision=decision)


def is_edited(situation: Situation) -> bool:
    """Whether a pod of the current attempt, or a PodGroup, was rendered from another spec.

    Also one of a rank that the gang no longer has: nodes may have changed before the status held the size of the attempt.
    """
    wanted, status = spec_hash(situation.spec), situation.status
    pods = (*situation.gang.current.values(), *(pod for pod in situation.observed.pods if is_current(pod, status)))
    hashes = {found.annotations.get(names.ANNOTATION_SPEC_HASH, "") for found in _objects(situation)}
    return not {pod.spec_hash for pod in pods} | hashes <= {"", wanted}
