"""Which nodes the next attempt should keep away from.

Soft: the scheduler prefers other nodes and takes these where there are no others. So it costs nothing to avoid a node
although the program may have been the cause.
"""

from collections import Counter

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.failure.classes import MAY_BE_THE_NODE

#: Failures on one node, of the attempts that the status remembers, before it is avoided.
FAILURES_TO_AVOID = 2


def avoided_nodes(status: DDPJobStatus) -> tuple[str, ...]:
    """Nodes on which this job failed twice or more for a reason that may be the node."""
    failures = Counter(past.node for past in status.attempts if past.node and past.reason in MAY_BE_THE_NODE)
    return tuple(sorted(node for node, times in failures.items() if times >= FAILURES_TO_AVOID))
