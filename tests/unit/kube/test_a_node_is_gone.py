"""When a node counts as gone, so that its pods need not be waited for."""

from typing import Any

import pytest

from ddpjob_operator.kube.questions import is_gone


def node(ready: str | None, *taints: str) -> dict[str, Any]:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    return {"spec": {"taints": [{"key": taint} for taint in taints]}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("body", "gone"),
    [
        (node("True"), False),
        (node("True", "node.kubernetes.io/unschedulable"), False),
        (node("True", "node.kubernetes.io/out-of-service"), True),
        (node("False"), True),
        (node("Unknown"), True),
        (node(None), True),
    ],
)
def test_a_node(body: dict[str, Any], *, gone: bool) -> None:
    assert is_gone(body) is gone
