"""When a node counts as gone, so that its pods need not be waited for, and when it accepts no new pods."""

from typing import Any

import pytest

from ddpjob_operator.kube.lookups.node_reader import NodeState, node_state, pause_seconds


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
        (node("False", "node.kubernetes.io/not-ready"), NodeState.WELL),  # its kubelet reports, and stops its pods
        (node("False", unschedulable=True), NodeState.CORDONED),
        (node("False", "node.kubernetes.io/out-of-service"), NodeState.GONE),
        (node("Unknown", unschedulable=True), NodeState.GONE),
        (node(None), NodeState.WELL),  # nobody has reported anything of it yet
    ],
)
def test_a_node(body: dict[str, Any], state: NodeState) -> None:
    assert node_state(body) == state


@pytest.mark.parametrize("num_nodes", [1, 100, 1000, 4096])
def test_nodes_are_read_every_two_seconds_unless_there_are_many(num_nodes: int) -> None:
    """The pods of a gang of 1000 nodes that hang in a file system cost 500 requests a second for as long as they hung."""
    assert pause_seconds(num_nodes) == (2.0 if num_nodes <= 100 else num_nodes / 50)
