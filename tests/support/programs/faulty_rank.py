"""A trainer with one rank that goes wrong: FAULT says how, FAULTY_RANK which; the fault comes at step FAULT_STEP.

With CHECK it comes within the set-up or at the end instead, where that function is called. Forked ranks call `arrange`;
as a program this module is the trainer with its launcher.
"""

import os
import re
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddpjob_ranks import checks, distributed
from ddpjob_ranks.launch import identity, launcher
from ddpjob_ranks.limits import Limits
from ddpjob_ranks.watch import idleness, watchdog
from ddpjob_trainer import __main__, consistency
from ddpjob_trainer.data import Feed

BATCH = Feed.batch
REPLICAS: list[DistributedDataParallel] = []
WATCH = watchdog.Watchdog.watch
WATCHDOGS: list[watchdog.Watchdog] = []
#: From the fault of a step on, so that a standstill ends within seconds. Before it a healthy rank may take as long as it
#: wants.
CLOSE = Limits(first_step_seconds=3, step_seconds=3)


def batch_of_a_faulty_rank(feed: Feed, step: int) -> object:
    """Feed.batch, with the fault at its step."""
    first_start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    due = first_start and not os.environ.get("CHECK") and step == int(os.environ["FAULT_STEP"])
    if due and os.environ["FAULT"] in STANDSTILLS:
        watch_closely()
    if due and os.environ["FAULTY_RANK"] == str(feed.rank):
        if os.environ["FAULT"] == "raise":
            raise LookupError("the disk of sample 7 is on fire")
        FAULTS[os.environ["FAULT"]]()
    return BATCH(feed, step)


def check_of_a_faulty_rank(*_: object, **__: object) -> None:
    """In the place of a check that all ranks take part in."""
    FAULTS[os.environ["FAULT"]]()


def watch_closely() -> None:
    """Shorten the limits of this rank's watchdog."""
    for each in WATCHDOGS:
        each._limits = CLOSE


def note_watchdog(begun: watchdog.Watchdog, *arguments: Any) -> None:
    """`Watchdog.watch`."""
    WATCHDOGS.append(begun)
    WATCH(begun, *arguments)


def loop_for_ever() -> None:
    """As a bug in Python would."""
    while True:
        pass


def hold_the_interpreter() -> None:
    """As a bug in compiled code would: no other thread of this process runs Python any more."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def skip_all_reduces() -> None:
    """Gradients are this rank's own from here on, as if its program had another branch here."""
    REPLICAS[-1].require_backward_grad_sync = False


def note_replica(module: torch.nn.Module, _: object) -> None:
    """Before each forward pass of any module."""
    if isinstance(module, DistributedDataParallel):
        REPLICAS[:] = [module]


#: Where functions live that all ranks take part in.
CHECKS: dict[str, ModuleType] = {
    "new_group": dist,
    "check_group": checks,
    "check_data": consistency,
    "leave": distributed,
}
FAULTS: dict[str, Callable[[], object]] = {
    "drift": lambda: None,  # see step_of_a_drifting_rank
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(0),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "loop": loop_for_ever,
    "hold": hold_the_interpreter,
    "skip": skip_all_reduces,
}
STANDSTILLS = {"stop", "loop", "hold", "skip"}


def step_of_a_drifting_rank(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """After each update, one parameter is off by the smallest possible amount."""
    if os.environ["FAULTY_RANK"] == os.environ["RANK"]:
        weight = optimizer.param_groups[0]["params"][1].data.view(torch.int32)
        weight.view(-1)[5] += 1


def arrange() -> None:
    """Set this rank up as the environment says; to be called before it trains."""
    Feed.batch = batch_of_a_faulty_rank  # type: ignore[method-assign, assignment]  # that is the fault
    name = os.environ.get("CHECK")
    watchdog.Watchdog.watch = note_watchdog  # type: ignore[method-assign,assignment]
    idleness.LOSS_SECONDS = 5.0  # so that on a busy machine, too, a rank that lost another one finds out which
    if name and os.environ["FAULTY_RANK"] == os.environ["RANK"]:
        check = getattr(CHECKS[name], name)
        for module in list(sys.modules.values()):  # modules that are loaded may have imported it by name
            if getattr(module, "__dict__", {}).get(name) is check:
                setattr(module, name, check_of_a_faulty_rank)
    register_module_forward_pre_hook(note_replica)
    if os.environ["FAULT"] == "drift":
        register_optimizer_step_post_hook(step_of_a_drifting_rank)


if __name__ == "__main__":
    if isinstance(place := identity.resolve(os.environ), identity.Node):
        sys.exit(launcher.run(place, [sys.executable, *sys.argv], os.environ))
    arrange()
    sys.exit(__main__.main(sys.argv[1:]))
