"""Which nodes the next attempt should keep away from.

Soft: the scheduler prefers other nodes and takes these where there are no others. So it costs nothing to blame a node for
what may have been the program's fault.
"""

from collections import Counter

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.failure.classes import BLAMES_NODE

#: Failures on one node, of the attempts that the status remembers, before it is avoided.
BLAMES_TO_AVOID = 2


def avoided_nodes(status: DDPJobStatus) -> tuple[str, ...]:
    """Nodes that were blamed for failures of this job twice or more."""
    blamed = Counter(past.node for past in status.attempts if past.node and past.reason in BLAMES_NODE)
    return tuple(sorted(node for node, times in blamed.items() if times >= BLAMES_TO_AVOID))
