"""The table of faults and phases, without a cluster."""

import pytest

from chaos.faults import INJECTIONS
from chaos.matrix import CELLS, CLUSTER_WIDE, MATRIX_IN_PLACE, Cell, Fault, Phase

LOST = (Fault.DELETE, Fault.FORCE_DELETE, Fault.EVICT, Fault.DRAIN, Fault.KUBELET, Fault.MAIN_PROCESS)


def test_every_fault_of_the_tables_can_be_caused() -> None:
    assert {cell.fault for cell in CELLS} == set(INJECTIONS)


def test_cells_have_names_of_their_own() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize("phase", [Phase.STEADY, Phase.CHECKPOINTING, Phase.EVALUATING])
@pytest.mark.parametrize("fault", LOST)
def test_a_lost_pod_is_replaced_alone_without_a_step_lost(fault: Fault, phase: Phase) -> None:
    allowed = Cell(fault, phase, in_place=True).allowed
    assert [(outcome.tier, outcome.attempts, outcome.steps_lost) for outcome in allowed] == [(2, 1, 0)]


def test_faults_of_nodes_run_alone() -> None:
    of_nodes = {fault for fault in MATRIX_IN_PLACE if fault.startswith(("node-", "kubelet-"))}
    assert len(of_nodes) == 3
    assert of_nodes <= CLUSTER_WIDE
