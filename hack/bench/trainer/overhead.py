"""`overhead`: what watching a training costs, for how long a checkpoint keeps it from running, and what memory for a restart costs.

Watching: CPU time of the main thread, not elapsed time, which on a shared machine would measure the neighbours. On a GPU
the device works on meanwhile, so there it costs less than the line says.

A checkpoint: the copy of the state, and the time for which the main thread waits for the GIL while the file is written:
elapsed time without CPU time and without time on the run queue (proc_pid_schedstat(5)), which again leaves out the
neighbours.

Memory for a restart in place, on CPUs: CPU time of rank 0 in each step, for what no other rank knows.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import cast

import torch

from bench.driver import Run
from ddpjob_measure import record
from ddpjob_ranks.distributed import Gang
from ddpjob_ranks.generation import Generation
from ddpjob_ranks.watch.step_timer import StepTimer
from ddpjob_ranks.watch.timeline import STEP_PHASES, Phase, Timeline
from ddpjob_session.checkpoints.claim import Claim, Owner
from ddpjob_session.checkpoints.files import Folder
from ddpjob_session.checkpoints.folder import CheckpointFolder
from ddpjob_session.checkpoints.writer import CheckpointWriter
from ddpjob_session.memory.at_exit import MemoryAtExit
from ddpjob_session.report import Reporter
from ddpjob_session.state import State
from ddpjob_trainer import recipes
from ddpjob_trainer.config import parse_config
from ddpjob_trainer.optim import sgd
from ddpjob_trainer.state import TrainingState

CPU = torch.device("cpu")
#: Every so many steps one is timed and a span written, as logEverySteps does by default.
LOG_EVERY_STEPS = 10
NUM_STEPS = 2_000
NUM_KEPT_STEPS = 200
REPEATS = 7
#: Parameters of the state that is saved, about those of a ResNet-50: with momentum, 2 x 160 tensors and 205 MB.
NUM_TENSORS, TENSOR_SIZE = 160, 160_000
#: Recipes whose state is kept in memory, and whether with generators of random numbers.
KEPT = {
    "a model without buffers": ("digits", False),
    "the same in a session, which keeps random numbers": ("digits", True),
    "a ResNet-18, which has 60 buffers": ("resnet18-cifar10", False),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--folder", type=Path, help="where checkpoints are written (default: a temporary folder)")
    record.add_options(parser, "overhead", results=None)


def run(given: argparse.Namespace) -> int:
    """Measure and print; returns 0."""
    torch.set_num_threads(1)
    run = Run(given, "Overhead")
    marks, hook = marks_seconds(), max(0.0, backward_seconds(watched=True) - backward_seconds(watched=False))
    run.row(what="marks and spans, CPU us a step", value=1e6 * marks)
    run.row(what=f"with a hook in every {LOG_EVERY_STEPS}th step", value=1e6 * (marks + hook / LOG_EVERY_STEPS))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for what, value in saving(Path(folder)).items():
            run.row(what=f"a checkpoint, {what}", value=value)
    for what, (recipe, drawn) in KEPT.items():
        value = 1e3 * keeping_seconds(recipe, has_generators=drawn)
        run.row(what=f"a state in memory on CPUs, CPU ms a step: {what}", value=value)
    return run.end()


def _median_seconds(work: Callable[[], None]) -> float:
    def once() -> float:
        before = time.process_time()
        work()
        return time.process_time() - before

    return median(once() for _ in range(REPEATS))


def marks_seconds() -> float:
    """CPU seconds a step for moving the mark through all phases, timing and spans of every tenth step included."""
    with tempfile.TemporaryFile("w", encoding="utf-8") as file:
        timeline = Timeline(file)

        def steps() -> None:
            for step in range(1, NUM_STEPS + 1):
                timer = StepTimer(CPU, exact=step % LOG_EVERY_STEPS == 0, timeline=timeline)
                for phase in STEP_PHASES:
                    timer.enter(phase)
                timeline.step_done(step, num_samples=1)
                if step % LOG_EVERY_STEPS == 0:
                    timeline.sample(timer.seconds(), timer.exposed_seconds)
                    timeline.flush()

        return _median_seconds(steps) / NUM_STEPS


def backward_seconds(*, watched: bool) -> float:
    """CPU seconds of the smallest backward pass, with or without a note of its last gradient."""
    parameter = torch.nn.Parameter(torch.ones(()))

    def passes() -> None:
        for _ in range(NUM_STEPS):
            timer = StepTimer(CPU, exact=True)
            timer.enter(Phase.BACKWARD)
            loss = parameter * 2
            if watched:
                timer.watch_gradients(loss)
            torch.autograd.backward(loss)
            timer.enter(Phase.OPTIMIZER)

    return _median_seconds(passes) / NUM_STEPS


def saving(folder: Path) -> dict[str, float]:
    """Medians over some checkpoints of one state."""
    state = _state()
    checkpoints = CheckpointFolder(claim=Claim(storage=Folder(folder), owner=Owner(uid="overhead", attempt=1)), keep=1)
    checkpoints.open()
    report = Reporter(enabled=False)
    report.begin(step=0, total_steps=REPEATS, steps_per_epoch=REPEATS, checkpoint_step=None)
    writer = CheckpointWriter(checkpoints, report, CPU)
    found = []
    for step in range(REPEATS):
        state.step = step
        began = time.perf_counter()
        writer.save(state, since=time.monotonic())
        copied, scheduled = time.perf_counter(), _scheduled_seconds()
        while writer.busy:
            pass  # this thread never asks to sleep, so it sleeps only for the GIL
        written = time.perf_counter() - copied
        waited = max(0.0, written - (_scheduled_seconds() - scheduled))
        found.append((1e3 * (copied - began), 1e3 * waited, 1e3 * written))
    names = ("ms for the copy", "ms of waiting for the GIL while it is written", "ms until it is written")
    medians = map(median, zip(*found, strict=True))
    megabytes = sum(path.stat().st_size for path in folder.glob("*.pt")) / 1e6
    return {"MB": megabytes, **dict(zip(names, medians, strict=True))}


def _scheduled_seconds() -> float:
    """Seconds of this thread on a CPU or on the run queue of one."""
    running, queueing, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    return (int(running) + int(queueing)) / 1e9


def _state() -> TrainingState:
    """After one step of many parameters, so that they have momenta."""
    config = recipes.resolve(parse_config({"recipe": "digits"}))
    model = torch.nn.Module()
    for index in range(NUM_TENSORS):
        parameter = torch.nn.Parameter(torch.rand(TENSOR_SIZE))
        parameter.grad = torch.zeros_like(parameter)
        model.register_parameter(f"parameter_{index}", parameter)
    state = TrainingState(model=model, optimizer=sgd(model, config), config=config, data={})
    state.optimizer.step()
    return state


def keeping_seconds(recipe: str, *, has_generators: bool) -> float:
    """CPU seconds a step of rank 0 for what it keeps of the recipe's model, between passes that use the caches of the CPU.

    In a loop of its own it would take a tenth of that.
    """
    model = recipes.find(recipe).model(SimpleNamespace(num_classes=10))
    state = State({"model": model}, program="overhead")
    state.keeps_generators = has_generators
    node, own = (os.memfd_create(name) for name in ("node", "own"))
    generation = Generation(number=1, pipe=-1, state_memory=node, own_memory=own, stores=-1)
    memory = MemoryAtExit(generation, state, cast("Gang", SimpleNamespace(rank=0, device=CPU)))
    memory.hold([], restored=False)
    trained, images = recipes.find("digits").model(SimpleNamespace(num_classes=10)), torch.rand(64, 1, 8, 8)

    def step() -> float:
        loss = trained(images).sum()
        began = time.thread_time()
        memory.forward_done(model)
        seconds = time.thread_time() - began
        torch.autograd.backward(loss)
        state.step += 1
        began = time.thread_time()
        memory.step_done()
        generation.step_done(state.step)
        return seconds + time.thread_time() - began

    seconds = median(step() for _ in range(NUM_KEPT_STEPS))
    os.close(node)
    os.close(own)
    return seconds
