"""Jobs that may run on fewer nodes, for the tests of what follows from `minNodes`."""

from dataclasses import replace
from typing import Any

from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.core.model import Job, Observed, Waiting
from ddpjob_operator.scheduling.discovery import newest
from support.builders import NOW, edited, job, observed, pending, pod, reconciled

NO_NODE = Waiting(reason="Unschedulable", message="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
WAIT = 120.0
ELASTIC = job(nodes=4, minNodes=2, deadlines={"fullSizeSeconds": int(WAIT)})


def placed(num_placed: int, of: Job = ELASTIC) -> Observed:
    """The first attempt; so many of its pods run, and no node has room for the others."""
    pods = (pod(of, rank) if rank < num_placed else pending(of, rank, waiting=NO_NODE) for rank in range(4))
    return reconciled(observed(of, *pods))


def shrunk(num_placed: int = 3, of: Job = ELASTIC) -> Observed:
    """The attempt that follows, running on fewer nodes."""
    after = reconciled(placed(num_placed, of), NOW + WAIT)
    assert after.job.status.attempt == 2
    small = edited(after, nodes=num_placed).job
    pods = tuple(pod(small, rank, 2) for rank in range(num_placed))
    return reconciled(replace(after, pods=pods), NOW + WAIT + 10)


BEGAN = NOW + WAIT + 10
#: From then on the job on 3 of 4 or 5 nodes asks for the others.
ASKS = BEGAN + 3600


def growing(nodes: int = 4, **more: Any) -> Observed:
    """The job on fewer nodes, which asks for the others after an hour."""
    of = job(nodes=nodes, minNodes=2, deadlines={"fullSizeSeconds": int(WAIT), "fewerNodesSeconds": 3600}, **more)
    after = reconciled(placed(3, of), NOW + WAIT)
    small = edited(after, nodes=3).job
    return reconciled(replace(after, pods=tuple(pod(small, rank, 2) for rank in range(3))), BEGAN)


KUEUE, NATIVE, VOLCANO, COSCHEDULING = map(
    newest, (ProviderName.KUEUE, ProviderName.NATIVE, ProviderName.VOLCANO, ProviderName.COSCHEDULING)
)
