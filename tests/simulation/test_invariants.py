from collections import Counter

import pytest

from simulation.campaign import FIRST_SEED, SCHEDULES_PER_FOCUS, explore, table, too_rare
from simulation.schedule import FOCUSES, GANGS, REPLACED_PODS, RESIZED


def test_hundreds_of_schedules_keep_every_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    seen: Counter[str] = Counter()
    for focus in (name for name in FOCUSES if name not in (REPLACED_PODS, RESIZED, GANGS)):
        seen += explore(SCHEDULES_PER_FOCUS, first_seed=FIRST_SEED, focus=focus)
    with capsys.disabled():
        print(f"\nof {seen['schedules']} schedules, so many had at least one:\n{table(seen)}")
    assert not too_rare(seen), "the schedules no longer reach what they are for"


def test_hundreds_of_schedules_with_replaced_pods_keep_every_invariant() -> None:
    seen = explore(SCHEDULES_PER_FOCUS, first_seed=FIRST_SEED, focus=REPLACED_PODS)
    assert seen["pod replaced"] * 10 >= seen["schedules"]


def test_hundreds_of_schedules_with_changed_sizes_keep_every_invariant() -> None:
    seen = explore(3 * SCHEDULES_PER_FOCUS, first_seed=FIRST_SEED, focus=RESIZED)  # few of them have room to grow
    assert seen["attempt of another size"] * 4 >= seen["schedules"]
    assert seen["attempt on fewer nodes"] * 8 >= seen["schedules"]
    assert seen["grew"] * 100 >= seen["schedules"]


def test_hundreds_of_schedules_with_gang_scheduling_keep_every_invariant() -> None:
    seen = explore(SCHEDULES_PER_FOCUS, first_seed=FIRST_SEED, focus=GANGS)
    assert seen["pod replaced"] * 20 >= seen["schedules"]
    assert seen["gang refused"] * 20 >= seen["schedules"]
