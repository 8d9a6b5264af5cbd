"""The table of faults and phases, and what is read of a cell, without a cluster."""

from chaos.faults import INJECTIONS
from chaos.marks import Marks, seconds_to_train, steps_lost
from chaos.matrix import CELLS


def test_every_fault_of_the_tables_can_be_caused() -> None:
    assert {cell.fault for cell in CELLS} == set(INJECTIONS)


def test_cells_have_names_of_their_own() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_marks_of_ranks_show_the_steps_that_are_repeated_and_when_all_ranks_train_again() -> None:
    first = Marks.parse("python 1.0\nbegin 0 2.0\nstep 1 3.0\nstep 2 4.0\nbegin 1 7.0\nstep 2 9.5\nstep 3 1")
    other = Marks.parse("begin 0 2.0\nbegin 1 8.0\nstep 2 9.0\n")
    assert steps_lost({(1, 0): first, (1, 1): other}) == 1
    assert seconds_to_train({(1, 0): first, (1, 1): other}, 5.0) == 4.5
    assert seconds_to_train({(1, 0): first, (1, 1): other}, 10.0) is None
