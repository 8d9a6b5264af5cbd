"""A part of the matrix of faults and phases for every change of the code; `make chaos` runs all of it."""

from collections.abc import Iterator

import pytest

from chaos import cell as cells
from chaos.laboratory import Laboratory
from chaos.matrix import CLUSTER_WIDE, Cell, Fault, Phase

SAMPLE = (
    Cell(Fault.EXIT, Phase.RENDEZVOUS),
    Cell(Fault.KILL, Phase.CHECKPOINTING),
    Cell(Fault.DELETE, Phase.STEADY),
    Cell(Fault.EVICT, Phase.PENDING),
    Cell(Fault.STOP, Phase.FIRST_STEP),
    Cell(Fault.SUSPEND, Phase.STEADY),
    Cell(Fault.DRAIN, Phase.STEADY),
    Cell(Fault.OPERATOR, Phase.FINISHING),
    Cell(Fault.KILL, Phase.STEADY, in_place=True),
    Cell(Fault.MAIN_PROCESS, Phase.STEADY, in_place=True),
)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    """The cluster that the sample runs on."""
    with Laboratory(replicas=2) as laboratory:
        yield laboratory


@pytest.mark.parametrize("cell", SAMPLE, ids=lambda cell: cell.name)
def test_the_outcome_is_the_one_in_the_table(laboratory: Laboratory, cell: Cell) -> None:
    result = cells.run(laboratory, cell)

    if cell.fault in CLUSTER_WIDE:
        laboratory.repair()
    assert result.right, "\n".join([result.wrong, *result.seen])
