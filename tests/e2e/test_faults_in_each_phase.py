"""A part of the matrix of faults and phases for every change of the code; `make chaos` runs all of it."""

from collections.abc import Iterator

import pytest

import testbed
from chaos import cell as cells
from chaos.laboratory import Laboratory, laboratory
from chaos.matrix import CLUSTER_WIDE, Cell, Fault, Phase

SAMPLE = (
    Cell(Fault.EXIT, Phase.RENDEZVOUS),
    Cell(Fault.KILL, Phase.CHECKPOINTING),
    Cell(Fault.DELETE, Phase.STEADY),
    Cell(Fault.EVICT, Phase.PENDING),
    Cell(Fault.EVICT, Phase.STEADY),
    Cell(Fault.STOP, Phase.FIRST_STEP),
    Cell(Fault.SUSPEND, Phase.STEADY),
    Cell(Fault.DRAIN, Phase.STEADY),
    Cell(Fault.KUBELET, Phase.STEADY),
    Cell(Fault.OPERATOR, Phase.FINISHING),
    Cell(Fault.KILL, Phase.STEADY, in_place=True),
    Cell(Fault.DELETE, Phase.STEADY, in_place=True),
    Cell(Fault.FIRST_MAIN_PROCESS, Phase.STEADY, in_place=True),
    Cell(Fault.REPLACED_LATER, Phase.STEADY, in_place=True),
    Cell(Fault.GROW, Phase.STEADY, in_place=True),
    Cell(Fault.SHRINK, Phase.STEADY, in_place=True),
)


@pytest.fixture(scope="module")
def lab(machine: testbed.Cluster) -> Iterator[Laboratory]:
    """The cluster of all end-to-end tests, with two operators meanwhile."""
    with laboratory(machine) as lab:
        yield lab


@pytest.mark.parametrize("cell", SAMPLE, ids=lambda cell: cell.name)
def test_the_outcome_is_the_one_in_the_table(lab: Laboratory, cell: Cell) -> None:
    result = cells.run(lab, cell)

    if cell.fault in CLUSTER_WIDE:
        lab.repair()
    assert not result.wrong, "\n".join([result.wrong, *result.seen])
