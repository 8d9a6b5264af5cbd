"""Lost pods of a gang whose other ranks wait for them: only these pods are replaced, within the same attempt.

The others keep the state of the training in memory, so that in most cases no checkpoint is needed. Each case of doubt is a restart of the whole gang.
"""

import re
import signal
from collections.abc import Iterable, Sequence

from ddpjob_operator.api.names import ProviderName, Reason
from ddpjob_operator.core.failure.cause import End
from ddpjob_operator.core.failure.class_of_end import QUEUE_EVICTION
from ddpjob_operator.core.failure.classes import TAKEN_AWAY
from ddpjob_operator.core.failure.restart import RestartDecision, restarts_left
from ddpjob_operator.core.model import Pod
from ddpjob_operator.core.policies.late_replacement import have_joined
from ddpjob_operator.core.situation import Situation

#: The launcher itself was killed. One that gives up after a rank was killed names that rank.
_KILLED = frozenset({Reason.KILLED, Reason.OUT_OF_MEMORY})
#: What the status must hold until the successor of a pod runs.
_FIELDS = frozenset({"replacedPods", "restarts.podReplacements", "restarts.inPlaceCounted"})
_LAUNCHERS_MESSAGE = re.compile(r"rank \d+\n")


def ranks_to_replace(situation: Situation, ends: Iterable[End], restart: RestartDecision) -> tuple[int, ...]:
    """The node ranks of the lost pods if it is enough to replace these; nothing if the whole gang is to start again.

    The launchers of the other pods must run and wait, which labels of the pods say. A back-off is for the whole gang, which would
    hold its nodes otherwise.
    """
    gang, spec = situation.gang, situation.spec
    ends = tuple(ends)
    lost = {end.rank for end in ends}
    others = [pod for rank, pod in gang.current.items() if rank not in lost]
    is_sure = (
        spec.restart.in_place
        and not _FIELDS & situation.observed.dropped_fields
        and situation.status.running_since is not None
        and restart.final is None
        and restart.delay_seconds == 0
        and restarts_left(spec, restart.restarts) > 0
        and bool(others)
        and _all_have_joined(situation, others)
        and all(_waits(pod, situation.provider.name) for pod in others)
        and all(_is_lost(situation, end) for end in ends)
    )
    return tuple(sorted(lost)) if is_sure else ()


def _all_have_joined(situation: Situation, others: Sequence[Pod]) -> bool:
    """Whether each of these pods is the first one of its rank, or has joined the others. New pods alone would wait for each other."""
    return not any(situation.status.replacement(pod.rank) for pod in others) or have_joined(situation)


def _waits(pod: Pod, provider: ProviderName) -> bool:
    # A pod that is created for one scheduling provider is no member of a group that another one has scheduled.
    is_of_provider = (pod.scheduling or ProviderName.NONE) == provider
    return is_of_provider and pod.is_supervised and pod.running and pod.deletion is None and not pod.disruption


def _is_lost(situation: Situation, end: End) -> bool:
    """Whether the pod ended, rather than the program in it."""
    pod = situation.gang.current.get(end.rank)
    if end.reason in TAKEN_AWAY:
        # A queue evicts whole groups; the other pods of this one have not been marked yet.
        return pod is None or not pod.disruption.startswith(QUEUE_EVICTION)
    if any(end.exit_code in rule.exit_codes for rule in situation.spec.restart.rules):
        return False
    if end.reason not in _KILLED or pod is None or pod.exit is None:
        return False
    return pod.exit.signal == signal.SIGKILL and not _LAUNCHERS_MESSAGE.match(pod.exit.message)
