"""A gang for which a node autoscaler adds nodes: it is worth waiting for them, for a while.

An autoscaler adds nodes for pods that exist. A gang that deleted its pods would make it remove the nodes again.
"""

from dataclasses import replace

from ddpjob_operator.core.actions import ReadScaleUp
from ddpjob_operator.core.model import ScaleUp
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.times import duration

#: A node that has not registered by now does not come: the default of the cluster autoscaler's --max-node-provision-time, and
#: of Karpenter's NodeClaims.
PROVISIONING_SECONDS = 900.0
#: An autoscaler may announce nodes again and again that never come.
MAX_PROVISIONING_SECONDS = 3600.0
#: Events have whole seconds.
_EVENT_SECONDS = 1.0


def lookup(situation: Situation) -> ReadScaleUp | None:
    """What to look up of a gang of which a pod finds no node."""
    return ReadScaleUp(job=situation.job.name) if situation.gang.is_refused_a_node else None


def ends_at(situation: Situation) -> float | None:
    """Until when the gang waits for announced nodes; None if there are none to wait for."""
    scale_up = _announced(situation)
    if scale_up is None:
        return None
    at = min(scale_up.latest + PROVISIONING_SECONDS, scale_up.since + MAX_PROVISIONING_SECONDS)
    return at if at > situation.now else None


def explanation(situation: Situation) -> str:
    """What the status says while the gang waits for announced nodes; empty if it does not."""
    scale_up = _announced(situation)
    if scale_up is None or ends_at(situation) is None:
        return ""
    waited = _shown_seconds(max(situation.now - scale_up.since, 0.0))
    since = f" since {duration(waited).removesuffix('0s')}" if waited else ""
    return f"waiting for node autoscaling{since}: "


def next_change(situation: Situation) -> float | None:
    """When the explanation changes although nothing happens."""
    scale_up, end = _announced(situation), ends_at(situation)
    if scale_up is None or end is None:
        return None
    waited = max(situation.now - scale_up.since, 0.0)
    return min(end, scale_up.since + _shown_seconds(waited) + _step(waited))


def _announced(situation: Situation) -> ScaleUp | None:
    """What was announced since the gang began to wait, also for an attempt that has released its places since."""
    scale_up, queued = situation.observed.scale_up, situation.clocks.queued
    if scale_up is None or lookup(situation) is None or scale_up.latest + _EVENT_SECONDS < queued:
        return None
    return replace(scale_up, since=max(scale_up.since, queued))


def _shown_seconds(waited: float) -> float:
    """Whole minutes, and from ten on whole tens, since each change is a write of the status."""
    return waited // _step(waited) * _step(waited)


def _step(waited: float) -> float:
    return 60.0 if waited < 600.0 else 600.0
