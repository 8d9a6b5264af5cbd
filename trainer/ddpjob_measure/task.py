"""One measured run, as it travels to the ranks on a command line and back in rank 0's output."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal, get_args

#: What is measured: the trainer's own step; the step of the plain DDP script; one batch in a wrapper; DDP's buckets.
Program = Literal["trainer", "plain", "wrapped", "buckets"]

#: A line of rank 0 that starts with this holds the figures of the run as one JSON object.
PREFIX = "ddpjob-measure "

#: The parts of a step, in the order in which they come; together they are the whole step.
PARTS = ("data", "forward_backward", "exposed_communication", "optimizer", "host")


class MeasureError(RuntimeError):
    """A measured run gave no figures; the text says why and holds the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What each rank is to do: `windows` times `steps` timed steps after `warmup_steps` untimed ones.

    `config` holds keys of the trainer's configuration (camelCase), `options` what a program needs in addition.
    """

    program: Program
    config: Mapping[str, Any]
    warmup_steps: int = 3
    steps: int = 10
    windows: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """The task that `to_json` wrote.

        Raises:
            ValueError: it is none.
        """
        try:
            task = cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"task {text}: {error}") from error
        if task.program not in get_args(Program):
            raise ValueError(f"task {text}: no program {task.program}; expected one of {', '.join(get_args(Program))}")
        return task


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of repeated measurements, their extremes and their number."""

    median: float
    low: float
    high: float
    num: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """The spread of at least one value."""
        ordered = sorted(values)
        return cls(median=median(ordered), low=ordered[0], high=ordered[-1], num=len(ordered))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Spread":
        """What `asdict` made of it."""
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run gave. Seconds are those of one step, parts the mean over ranks; CPU time and memory are those of all ranks."""

    world_size: int
    device: str
    global_batch_size: int
    images_per_second: Spread
    step_seconds: Spread
    cpu_seconds: Spread
    part_seconds: Mapping[str, Spread]
    peak_memory_bytes: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exposed_share(self) -> float:
        """The share of a step in which nothing but communication went on."""
        return self.part_seconds["exposed_communication"].median / self.step_seconds.median

    def line(self) -> str:
        """For rank 0's output."""
        return PREFIX + json.dumps(asdict(self))

    @classmethod
    def from_output(cls, output: str) -> "Figures":
        """The figures that rank 0 printed.

        Raises:
            MeasureError: it printed none.
        """
        lines = [line for line in output.splitlines() if line.startswith(PREFIX)]
        if not lines:
            raise MeasureError(f"rank 0 printed no line that starts with {PREFIX!r}; its output ends: {output[-2000:]}")
        fields = json.loads(lines[-1].removeprefix(PREFIX))
        for key in ("images_per_second", "step_seconds", "cpu_seconds"):
            fields[key] = Spread.from_json(fields[key])
        fields["part_seconds"] = {part: Spread.from_json(value) for part, value in fields["part_seconds"].items()}
        return cls(**fields)
