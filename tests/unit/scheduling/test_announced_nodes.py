"""A gang that an autoscaler adds nodes for says so under each scheduling provider."""

from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api.names import ProviderName
from ddpjob_operator.core.actions import CreateObject, ReadScaleUp
from ddpjob_operator.core.model import Membership, ScaleUp, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import object_of
from ddpjob_operator.scheduling.discovery import newest
from ddpjob_operator.scheduling.interface import Provider
from support.builders import NOW, job, observed, pending, with_status

NO_NODE = Waiting(reason="Unschedulable", message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
LACK = "0/3 nodes have nvidia.com/gpu: 1 free"
TOGETHER = f"no nodes for all 2 pods together: {LACK}"
MESSAGES = {
    ProviderName.NONE: f"2 of 2 pods have no node: {LACK}",
    ProviderName.KUEUE: f"2 of 2 pods have no node: {LACK}",
    ProviderName.NATIVE: TOGETHER,
    ProviderName.COSCHEDULING: TOGETHER,
    ProviderName.VOLCANO: "no nodes for all 2 pods together",  # what it lacks is in a condition of the PodGroup
}


@pytest.mark.parametrize("provider", [newest(name) for name in ProviderName], ids=lambda provider: provider.name)
def test_a_gang_says_since_when_it_waits_for_announced_nodes(provider: Provider) -> None:
    of = job(nodes=2, gpusPerNode=1)
    groups = []
    for action in plan(observed(of), NOW, provider).actions:
        if isinstance(action, CreateObject):
            metadata: dict[str, Any] = {**action.body["metadata"], "uid": "group", "resourceVersion": "1"}
            # The queue has admitted it.
            body = {**action.body, "metadata": metadata, "status": {"phase": "Inqueue"}}
            groups.append(object_of(provider.watched[0], body))
    is_of = "" if provider.name is ProviderName.NONE else provider.name.value
    member = Membership(group="job-1-job", is_held=True, closes=False)
    membership = {"membership": member if provider.name is ProviderName.KUEUE else None}
    pods = [pending(of, rank, waiting=NO_NODE, scheduling=is_of, **membership) for rank in range(2)]
    seen = replace(observed(of, *pods), objects=tuple(groups))
    seen = with_status(seen, plan(seen, NOW, provider).status)

    made = plan(replace(seen, scale_up=ScaleUp(since=NOW, latest=NOW + 100)), NOW + 150, provider)
    assert ReadScaleUp(job="job") in made.lookups
    assert made.status.message == f"waiting for node autoscaling since 2m: {MESSAGES[provider.name]}"
    assert plan(seen, NOW + 150, provider).status.message == MESSAGES[provider.name]
