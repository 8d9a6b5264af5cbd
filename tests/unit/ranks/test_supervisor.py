"""What a launcher decides of restarts in place."""

from typing import Any

import pytest

from ddpjob_ranks import contract
from ddpjob_ranks.launch.supervisor import is_final, is_stuck


@pytest.mark.parametrize(
    ("reached", "stuck"),
    [
        ([], False),
        ([7], False),
        ([7, 7], False),
        ([7, 7, 7], True),
        ([7, 7, 8], False),
        ([7, 8, 8], False),
        ([9, 7, 8], True),
        ([9, 7, 8, 10], False),
    ],
)
def test_two_restarts_without_a_further_step_are_the_last(reached, stuck):
    assert is_stuck(reached) == stuck


REPLACED = {contract.DDPJOB_REPLACEMENT_SECONDS: "200"}


@pytest.mark.parametrize(
    ("environ", "code", "has_begun", "seconds", "final"),
    [
        ({}, 1, True, 5, False),
        ({}, contract.EXIT_PEER_LOST, False, 5, False),
        ({}, contract.EXIT_BAD_CONFIG, True, 5, True),
        ({}, contract.EXIT_CHECKPOINTED, True, 5, True),
        ({contract.DDPJOB_FINAL_EXIT_CODES: "8,9"}, 9, True, 5, True),  # the operator has a rule for it
        ({contract.DDPJOB_FINAL_EXIT_CODES: "8,9"}, 1, True, 5, False),
        (REPLACED, contract.EXIT_CHECKPOINTED, True, 5, False),  # another pod was asked to stop, and is replaced
        (REPLACED, contract.EXIT_TERMINATED, True, 5, False),
        (REPLACED, contract.EXIT_TERMINATED, False, 5, True),  # this one
        (REPLACED, contract.EXIT_FENCED, True, 5, True),
        (REPLACED, contract.EXIT_PEER_LOST, False, 199, False),
        (REPLACED, contract.EXIT_PEER_LOST, False, 200, True),  # no pod has come
        (REPLACED, contract.EXIT_PEER_LOST, True, 200, False),
        (REPLACED | {contract.DDPJOB_FINAL_EXIT_CODES: "143"}, contract.EXIT_TERMINATED, True, 5, True),
    ],
)
def test_which_ends_of_a_generation_are_final(environ, code, has_begun, seconds, final):
    assert is_final(code, environ, has_begun=has_begun, seconds=seconds) == final


def test_ranks_that_set_up_for_long_start_again_with_others_that_have_begun_to():
    """They have not waited for a pod that was not replaced: the others are there."""
    waited: dict[str, Any] = {"has_begun": False, "seconds": 350}
    assert is_final(contract.EXIT_PEER_LOST, REPLACED, **waited)
    assert not is_final(contract.EXIT_PEER_LOST, REPLACED, **waited, others_have_begun=True)
