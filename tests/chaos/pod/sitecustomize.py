"""Slow motion of one phase of the built-in trainer, loaded by Python itself where this folder is on PYTHONPATH.

The trainer stays as it is in its image. In the first attempt rank 0 takes its time in the phase under test, as it would on
slow storage or with a slow rank, so that a fault can be aimed at it. Every attempt leaves marks with times, from which
the recovery is timed. SIGUSR1 ends the rank with exit code 1, SIGUSR2 makes it use memory until it is killed, and SIGRTMIN
raises an exception in it.

Standard library only: every Python process of the container runs this first. Where ranks start again in place, they are forks
of a process that has run it, and their launcher and its other children are left alone.
"""

import ctypes
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PHASE = os.environ.get("CHAOS_PHASE", "")
HOLD_SECONDS = float(os.environ.get("CHAOS_HOLD_SECONDS", "0"))
LATER_STEP_SECONDS = float(os.environ.get("CHAOS_LATER_STEP_SECONDS", "0"))
STEADY_STEP = int(os.environ.get("CHAOS_STEADY_STEP", "0"))
CHECKPOINT_STEP = int(os.environ.get("CHAOS_CHECKPOINT_STEP", "0"))
#: Longest wait for the fault, in case that whoever causes it has failed.
FAULT_SECONDS = 60

ATTEMPT, RANK = os.environ.get("DDPJOB_ATTEMPT", "1"), os.environ.get("RANK", "0")
MARKS = Path(os.environ.get("CHAOS_MARKS", "."), f"{ATTEMPT}-{RANK}")
#: Is there once the fault has been caused.
INJECTED = MARKS.parent / "injected"

#: Whether ranks are forks, which a launcher may start again.
IN_PLACE = "DDPJOB_IN_PLACE_RESTARTS" in os.environ

#: In the steady phase the time is spread over this many steps, so that training goes on.
STEPS_OF_STEADY_PHASE = 50
CHUNK_BYTES = 16 * 2**20


def mark(name: str) -> None:
    """Write down that this point is reached now."""
    with MARKS.open("a", encoding="ascii") as file:
        file.write(f"{name} {time.time():.6f}\n")


def is_aimed_at() -> bool:
    """Whether this process is the one that is slowed down: the first one of rank 0."""
    is_first = os.environ.get("DDPJOB_GENERATION", "1") == "1" and "DDPJOB_REPLACEMENTS" not in os.environ
    return ATTEMPT == "1" and RANK == "0" and is_first


def hold(phase: str) -> None:
    """Stay in this phase until the fault has been caused and for a while after it, if this process is aimed at in this phase."""
    if phase == PHASE and is_aimed_at():
        mark("phase")
        deadline = time.monotonic() + FAULT_SECONDS
        while not INJECTED.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(HOLD_SECONDS)


def reached(name: str) -> None:
    """The ranks look for each other, or have met, or a fork has its environment."""
    mark(name)
    if name == "python":
        obey_signals()
    hold(name)


class Steps:
    """The steps of this process, which are slow in the steady phase and after a loss, where a test asks for that."""

    slow_until = 0.0
    has_set_rate = False

    def begun(self, _: Any, *, step: int, **__: Any) -> None:
        """Training begins at this step."""
        mark(f"begin {step}")

    def done(self, _: Any, step: int, **__: Any) -> None:
        """A step is done."""
        mark(f"step {step}")
        if PHASE == "steady" and is_aimed_at() and step == STEADY_STEP:
            self.slow_until = time.monotonic() + HOLD_SECONDS
            mark("phase")
        if time.monotonic() < self.slow_until:
            time.sleep(HOLD_SECONDS / STEPS_OF_STEADY_PHASE)
        if ATTEMPT == "1" and RANK == "0" and not is_aimed_at():
            time.sleep(LATER_STEP_SECONDS)

    def first(self, *_: Any, **__: Any) -> None:
        """A step is in work; the first one of the process is a phase."""
        if not self.has_set_rate:
            self.has_set_rate = True
            hold("first-step")


def saves(_: Any, name: str, *__: Any, **___: Any) -> None:
    """The state of a checkpoint is on the disk, and the manifest that commits it is not, when its name is written."""
    if name.endswith(".json") and f"step-{CHECKPOINT_STEP:010d}-" in name:
        hold("checkpointing")


STEPS = Steps()
#: By module: a function, whether `act` is called before or after it, with the same arguments, and what it does.
WATCHED: dict[str, list[tuple[str, str, Callable[..., None]]]] = {
    "ddpjob_ranks.generation": [("Generation.follow_launcher", "before", lambda *_, **__: reached("python"))],
    "ddpjob_ranks.launch.rendezvous": [("open_store", "before", lambda *_, **__: reached("rendezvous"))],
    "ddpjob_trainer.worker": [("set_up", "before", lambda *_, **__: reached("met"))],
    "ddpjob_session.report": [("Reporter.begin", "after", STEPS.begun), ("Reporter.step_done", "after", STEPS.done)],
    "ddpjob_trainer.optim": [("set_learning_rate", "before", STEPS.first)],
    "ddpjob_trainer.loop": [("evaluate", "before", lambda *_, **__: hold("evaluating"))],
    "ddpjob_session.checkpoints.files": [("Folder.write", "before", saves)],
    "ddpjob_ranks.stop": [("StopAgreement.finish", "after", lambda *_, **__: hold("finishing"))],
}


def with_watch(function: Callable[..., Any], when: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with `act` called before or after it, with the same arguments."""

    def both(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            act(*args, **kwargs)
        result = function(*args, **kwargs)
        if when == "after":
            act(*args, **kwargs)
        return result

    return both


def watch(module: ModuleType) -> None:
    """Put the watches into a module that is loaded."""
    for name, when, act in WATCHED[module.__name__]:
        *owners, function = name.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, function, with_watch(getattr(owner, function), when, act))


class Watcher(importlib.abc.MetaPathFinder):
    """Lets a watched module load as ever, then puts the watch into it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, whose loader watches the module once it is loaded."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if fullname in WATCHED else None
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = with_watch(spec.loader.exec_module, "after", watch)  # type: ignore[method-assign]
        return spec


def obey_signals() -> None:
    """A thread that does what the signals ask, whatever the main thread waits for."""
    signals = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before any thread, for all of them
    main_thread = ctypes.c_ulong(threading.main_thread().ident or 0)

    def obey() -> None:
        received = signal.sigwait(signals)
        if received == signal.SIGRTMIN:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(main_thread, ctypes.py_object(LookupError))
            return
        if received == signal.SIGUSR1:
            sys.stderr.write("RuntimeError: failing on request\n")
            sys.stderr.flush()
            os._exit(1)
        eaten = []
        while True:
            eaten.append(b"x" * CHUNK_BYTES)

    threading.Thread(target=obey, name="chaos", daemon=True).start()


if PHASE:
    MARKS.parent.mkdir(parents=True, exist_ok=True)
    if not IN_PLACE:
        mark("python")
        obey_signals()
    sys.meta_path.insert(0, Watcher())
