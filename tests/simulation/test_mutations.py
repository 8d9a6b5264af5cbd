import pytest

from simulation.campaign import FIRST_SEED, SCHEDULES_PER_MUTATION, explore
from simulation.invariants.checker import Violation
from simulation.mutations import MUTATIONS, mutated


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_the_engine_breaks_an_invariant(name: str) -> None:
    with mutated(name), pytest.raises(Violation) as noticed:
        explore(SCHEDULES_PER_MUTATION, first_seed=FIRST_SEED, focus=MUTATIONS[name].focus, shrinks=False)
    assert "has logged an error" not in str(noticed.value), "the mutation is a crash, not a wrong decision"
