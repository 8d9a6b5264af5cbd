"""Overhead: what watching a training costs, in marks, spans and timed steps, beside the time of a step.

CPU time of the main thread, not elapsed time: on a shared machine the latter measures the neighbours. On a GPU the device
works on while the host does this, so there it costs less than the line says.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from statistics import median

import torch

from ddpjob_ranks.watch.step_timer import StepTimer
from ddpjob_ranks.watch.timeline import STEP_PHASES, Phase, Timeline

CPU = torch.device("cpu")
#: Every so many steps one is timed and a span written, as logEverySteps does by default.
LOG_EVERY_STEPS = 10
NUM_STEPS = 2_000
NUM_BACKWARD_PASSES = 2_000
REPEATS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--step-ms", type=float, default=10.0, help="a step of how many milliseconds to compare with")


def run(given: argparse.Namespace) -> int:
    """Print one line; returns 0."""
    marks = marks_seconds()
    hook = max(0.0, backward_seconds(watched=True) - backward_seconds(watched=False))
    seconds = marks + hook / LOG_EVERY_STEPS
    print(
        f"marks and spans {marks * 1e6:.1f} us a step, a hook {hook * 1e6:.1f} us every {LOG_EVERY_STEPS}th step: {seconds * 1e6:.1f} us, {seconds / given.step_ms * 1e5:.2f} % of a step of"
        f" {given.step_ms:g} ms"
    )
    return 0


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
        for _ in range(NUM_BACKWARD_PASSES):
            timer = StepTimer(CPU, exact=True)
            timer.enter(Phase.BACKWARD)
            loss = parameter * 2
            if watched:
                timer.watch_gradients(loss)
            torch.autograd.backward(loss)
            timer.enter(Phase.OPTIMIZER)

    return _median_seconds(passes) / NUM_BACKWARD_PASSES


def _median_seconds(work: Callable[[], None]) -> float:
    torch.set_num_threads(1)

    def once() -> float:
        before = time.process_time()
        work()
        return time.process_time() - before

    return median(once() for _ in range(REPEATS))
