"""The model of a preempted pool gives what a calculation by hand gives, and the same for the same seed."""

from random import Random
from typing import Any

import pytest

from bench import spot
from support.builders import job

COSTS = spot.Costs(start=20.0, stop=3.0, detect=80.0)
#: Two nodes; the second one goes after 1,000 s and is not back before 2,000 s.
TRACE = [
    spot.Change(at=0, node="a", is_up=True),
    spot.Change(at=0, node="b", is_up=True),
    spot.Change(at=1000, node="b", is_up=False),
]


@pytest.mark.parametrize(
    ("spec", "warned", "work"),
    [
        ({}, True, 2 * (1000 - 20)),
        # The last checkpoint was written after 600 s of training.
        ({}, False, 2 * 600),
        # Its pod stops until 1003, one of the next two gets a node at once, and the job waits for 120 s. That pod stops until 1126, and
        # the attempt of one node trains from 1146.
        ({"minNodes": 1}, True, 2 * 980 + (2000 - 1146)),
        ({"minNodes": 1}, False, 2 * 600 + (2000 - 1146 - 80)),
        # Nothing stops at first: the replaced pod is created at 1000, and the wait ends at 1120.
        ({"minNodes": 1, "restart": {"inPlace": True}}, True, 2 * 980 + (2000 - 1143)),
    ],
)
def test_a_known_trace_gives_the_work_that_a_calculation_by_hand_gives(
    spec: dict[str, Any], warned: bool, work: float
) -> None:
    result = spot.Cluster(job(nodes=2, **spec), COSTS, warned=warned).run(TRACE, 2000)
    assert result.work == pytest.approx(work, abs=1)
    assert result.available == 2 * 1000 + 1000


def test_a_replaced_pod_loses_no_work_although_its_node_went_without_a_warning() -> None:
    """The other rank waits from 1000 to 1080 without knowing, and for the start of the new pod on a third node."""
    trace = [spot.Change(at=0, node="c", is_up=True), *TRACE]
    of = job(nodes=2, restart={"inPlace": True})
    result = spot.Cluster(of, COSTS, warned=False).run(trace, 2000)
    assert result.work == pytest.approx(2 * (980 + 2000 - 1100), abs=1)


def test_pods_that_are_lost_one_after_the_other_are_replaced_one_after_the_other() -> None:
    """The second one after the new pod of the first has joined."""
    more = [spot.Change(at=0, node="c", is_up=True), spot.Change(at=0, node="d", is_up=True)]
    trace = [*more, *TRACE, spot.Change(at=1500, node="a", is_up=False)]
    result = spot.Cluster(job(nodes=2, restart={"inPlace": True}), COSTS, warned=False).run(trace, 2000)
    assert result.work == pytest.approx(2 * (980 + 400 + 400), abs=1)


def test_the_same_seed_gives_the_same_trace() -> None:
    traces = [spot.spot_trace(Random(seed), 3, 3600.0, 600.0, 86400.0) for seed in (1, 1, 2)]  # noqa: S311 repeatable
    assert traces[0] == traces[1] != traces[2]
    assert [change.is_up for change in traces[0][:3]] == [True] * 3
