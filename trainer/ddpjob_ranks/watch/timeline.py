"""Where this rank is and where its time went: one mark, moved by the main thread, and the seconds between its moves.

The watchdog reads the mark, the limiter report reads the seconds, and spans go to a file of JSON lines for each rank, in
the folder that DDPJOB_EVENTS_DIR names (off without it). Moving the mark costs about a microsecond: no lock, no file, no
wait for the device.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import IO, NamedTuple

from ddpjob_ranks import contract
from ddpjob_ranks.launch.identity import attempt
from ddpjob_ranks.regular_files import no_link


class Phase(StrEnum):
    """What a rank does, in the order in which it does so after the same number of steps.

    A step counts as done where its log begins, so the phases that follow a step are listed before those that begin the next one.
    """

    START = "start"
    """From the start of the process."""
    IMPORT = "import"
    RENDEZVOUS = "rendezvous"
    """Waiting for the other ranks, which the operator watches."""
    CONNECT = "connect"
    """Making the process groups."""
    SETUP = "setup"
    LOAD = "load"
    """Reading the data set; the span is called data."""
    COMPILE = "compile"
    LOG = "log"
    CHECKPOINT = contract.PHASE_CHECKPOINT
    EVALUATE = contract.PHASE_EVALUATE
    AGREE = "agree"
    """Between two steps: the agreement on stopping."""
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    """With the all-reduce of gradients, which runs at the same time and is waited for at its end."""
    OPTIMIZER = "optimizer"
    STEP = "step"
    """A whole step of a script that keeps its own loop."""
    LEAVE = "leave"
    """Leaving the process group, once all ranks are done."""
    END = "end"


#: Position of each phase, for which rank is behind.
ORDER = {phase: position for position, phase in enumerate(Phase)}
STEP_PHASES = (Phase.AGREE, Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.STEP, Phase.LOG)
SPAN_NAMES = {Phase.LOAD: "data"}


class Mark(NamedTuple):
    """A place in the program. It is replaced as a whole, so other threads never see half of one."""

    step: int
    phase: Phase
    since: float
    """On the monotonic clock, of the last sign of progress there."""


class Timeline:
    """The mark of one rank and its history. The main thread alone calls its methods; any thread may read `mark`."""

    def __init__(self, events: IO[str] | None = None, *, rank: int = 0, began: float | None = None) -> None:
        """`began` is when the phase START did, on the monotonic clock."""
        self.mark = Mark(0, Phase.START, time.monotonic() if began is None else began)
        self.began = self.mark.since
        self.training_began: float | None = None
        self.past_first_step = False
        self.seconds: defaultdict[Phase, float] = defaultdict(float)
        """Host time in each phase since the end of this process's first step."""
        self.num_steps = 0
        """Steps done since then."""
        self.num_samples = 0
        """Samples of all ranks in these steps."""
        self.sampled: defaultdict[Phase, float] = defaultdict(float)
        """Device time in each phase of the steps that were timed; `exposed_seconds` are part of the backward passes."""
        self.num_sampled = 0
        self.exposed_seconds = 0.0
        self.checkpoint_stalls_seconds: list[float] = []
        self._events = events
        self._rank = rank
        self._entered = self.began
        self._lap: defaultdict[Phase, float] = defaultdict(float)
        self._lap_began = self._entered
        self._lap_steps = self._lap_samples = 0

    def enter(self, phase: Phase, *, step: int | None = None, now: float | None = None) -> None:
        """The main thread comes to a phase; `step` is the number of steps done."""
        now = time.monotonic() if now is None else now
        before = self.mark
        self.mark = Mark(before.step if step is None else step, phase, now)
        seconds = now - self._entered
        if before.phase in STEP_PHASES:
            self._lap[before.phase] += seconds
        else:
            self._span(SPAN_NAMES.get(before.phase, before.phase), before.step, self._entered, now)
            self.seconds[before.phase] += seconds
            if before.phase is Phase.CHECKPOINT:
                self.checkpoint_stalls_seconds.append(seconds)
        self._entered = now

    def moved(self) -> None:
        """Progress within a long phase, such as one batch of evaluation."""
        self.mark = self.mark._replace(since=time.monotonic())

    def begin_training(self, *, step: int) -> None:
        """Set-up is over; `step` is the number of steps done by earlier runs."""
        self.enter(Phase.AGREE, step=step)
        self.training_began = self._lap_began = self._entered

    def sample(self, seconds: Mapping[Phase, float], exposed_seconds: float) -> None:
        """Take note of a timed step."""
        if self.past_first_step:
            _add(self.sampled, seconds)
            self.exposed_seconds += exposed_seconds
            self.num_sampled += 1

    def step_done(self, step: int, *, num_samples: int) -> None:
        """Count a step; the number of samples is the sum over all ranks."""
        self.mark = self.mark._replace(step=step)
        self._lap_steps += 1
        self._lap_samples += num_samples
        if not self.past_first_step:
            self.flush("first_step")
            self.past_first_step = True
            self.seconds.clear()
            self.num_steps = self.num_samples = 0

    def flush(self, name: str = "steps") -> None:
        """Write the steps since the last call as one span."""
        now = time.monotonic()
        self._lap[self.mark.phase] += now - self._entered
        self._entered = now
        host = {phase.value: round(seconds, 6) for phase, seconds in self._lap.items()}
        counters = {"num_steps": self._lap_steps, "num_samples": self._lap_samples, "host_seconds": host}
        self._span(name, self.mark.step, self._lap_began, now, **counters)
        _add(self.seconds, self._lap)
        self.num_steps += self._lap_steps
        self.num_samples += self._lap_samples
        self._lap.clear()
        self._lap_began, self._lap_steps, self._lap_samples = now, 0, 0

    def _span(self, name: str, step: int, began: float, ended: float, **counters: object) -> None:
        if self._events is None:
            return
        span = {
            "span": name,
            "rank": self._rank,
            "step": step,
            "monotonic_seconds": round(began, 6),
            "unix_seconds": round(time.time() - time.monotonic() + began, 6),
            "seconds": round(ended - began, 6),
            **counters,
        }
        try:
            self._events.write(json.dumps(span) + "\n")
            self._events.flush()
        except OSError as error:
            _report_no_spans(self._events.name, error)
            self._events = None


def _add(total: defaultdict[Phase, float], seconds: Mapping[Phase, float]) -> None:
    for phase, value in seconds.items():
        total[phase] += value


def open_events(environ: Mapping[str, str], *, rank: int) -> IO[str] | None:
    """The file of this rank's spans, `attempt-1-rank-0.jsonl`; None where no folder is named."""
    folder = environ.get(contract.DDPJOB_EVENTS_DIR)
    if not folder:
        return None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / f"attempt-{attempt(environ)}-rank-{rank}.jsonl"
        return open(path, "a", encoding="utf-8", opener=no_link)
    except OSError as error:
        _report_no_spans(folder, error)
        return None


def _report_no_spans(path: str, error: OSError) -> None:
    """Report that no spans are recorded; training continues."""
    print(
        f"{contract.DDPJOB_EVENTS_DIR}: {path} cannot be written ({error.strerror}); no more spans are recorded",
        file=sys.stderr,
    )


def process_began() -> float:
    """When this process started, on the monotonic clock (proc_pid_stat(5), field 22, in ticks since boot)."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_seconds
