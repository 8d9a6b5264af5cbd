"""When a node counts as gone, so that its pods need not be waited for, and when it takes no new ones."""

from typing import Any

import pytest

from ddpjob_operator.kube.lookups.lookups import NodeState, node_state


def node(ready: str | None, *taints: str, unschedulable: bool = False) -> dict[str, Any]:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    spec = {"taints": [{"key": taint} for taint in taints], "unschedulable": unschedulable}
    return {"spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (node("True"), NodeState.WELL),
        (node("True", "node.kubernetes.io/unschedulable", unschedulable=True), NodeState.CORDONED),
        (node("True", "node.kubernetes.io/out-of-service"), NodeState.GONE),
        (node("False"), NodeState.GONE),
        (node("Unknown", unschedulable=True), NodeState.GONE),
        (node(None), NodeState.GONE),
    ],
)
def test_a_node(body: dict[str, Any], state: NodeState) -> None:
    assert node_state(body) == state
