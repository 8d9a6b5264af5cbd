"""Random faults for `trainer_with_faults`, the same for the same seed."""

import random
from collections.abc import Sequence
from typing import Any

#: Where in a step, and around it, a rank may fail.
POINTS = ("step", "backward", "gradients", "optimizer", "updated", "checkpoint", "evaluation")
#: Where it may fail while it starts again.
RECOVERY_POINTS = ("rendezvous", "data", "load", "begin", "hold")
#: Those within pods. "all" is an exception of all ranks at once, "recovery" a fault while the ranks start again after another one.
#: The one that takes longest is the last one.
IN_PODS = ("kill", "recovery", "raise", "all", "exit", "memory", "stop")
#: Those after which other pods start: "pod" is the loss of one, and "gang" that of all of them.
LOSSES = ("pod", "gang")
KINDS = (*LOSSES, *IN_PODS)


def random_faults(kinds: Sequence[str], *, seed: int, num_ranks: int) -> list[dict[str, Any]]:
    """A fault of each of these kinds, in this order. A "recovery" needs another kind before it."""
    chosen = random.Random(seed)  # noqa: S311 - of a test
    faults: list[dict[str, Any]] = []
    step = 0
    for kind in kinds:
        step += chosen.randint(3, 6)
        fault = {
            "kind": kind,
            "step": step,
            "point": chosen.choice(POINTS),
            "ranks": [chosen.randrange(num_ranks)],
            "delay": chosen.uniform(0, 0.05),
        }
        if kind == "all":  # outside of the optimizer's step, so that all of them hold a state
            fault |= {"kind": "raise", "point": "step", "ranks": list(range(num_ranks))}
        if kind == "recovery":
            fault |= {"kind": chosen.choice(("kill", "exit", "raise")), "point": chosen.choice(RECOVERY_POINTS)}
        faults.append(fault)
    return faults


def shuffled_kinds(num_faults: int, *, seed: int, of: Sequence[str] = KINDS) -> list[str]:
    """As many of each kind as of any other, where the number allows it."""
    chosen = random.Random(seed)  # noqa: S311 - of a test
    kinds = [of[number % len(of)] for number in range(num_faults)]
    others = [kind for kind in kinds if kind != "recovery"]
    chosen.shuffle(others)
    for place in sorted(chosen.sample(range(1, len(others) + 1), kinds.count("recovery")), reverse=True):
        others.insert(place, "recovery")
    return others
