"""One measured run, as it travels to the ranks on a command line and back in rank 0's output."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

#: A line of rank 0 that starts with this holds the figures of the run as one JSON object.
PREFIX = "ddpjob-measure "

#: The parts of a step, in the order in which they come; together they are the whole step.
PARTS = ("data", "forward_backward", "exposed_communication", "optimizer", "host")


class MeasureError(RuntimeError):
    """A measured run gave no figures; the text says why and holds the end of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What each rank is to do: `windows` times `steps` timed steps after `warmup_steps` untimed ones.

    `program` is one of `measuring.PROGRAMS`, or `module:function` of one like them. `config` holds keys of the trainer's
    configuration (camelCase), `options` what a program needs in addition.
    """

    program: str
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
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"task {text}: {error}") from error


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

    def times(self, scale: float) -> "Spread":
        """In another unit."""
        return Spread(median=self.median * scale, low=self.low * scale, high=self.high * scale, num=self.num)

    def to_json(self) -> dict[str, Any]:
        """For a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Spread | dict[str, Any]":
        """An object of a record: the spread that `to_json` wrote, or else what it is."""
        return cls(**found) if found.keys() == {of.name for of in fields(cls)} else found


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

    def row(self) -> dict[str, Any]:
        """The columns of a table."""
        parts = {f"{part.replace('_', ' ')} ms": 1e3 * spread.median for part, spread in self.part_seconds.items()}
        return {
            "ranks": self.world_size,
            "global batch": self.global_batch_size,
            "images/s": self.images_per_second,
            "ms a step": self.step_seconds.times(1e3),
            "CPU ms a step": self.cpu_seconds.times(1e3),
            **parts,
            "peak MiB": self.peak_memory_bytes / 2**20,
        }

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
        found = json.loads(lines[-1].removeprefix(PREFIX))
        spreads = {of.name: Spread(**found[of.name]) for of in fields(cls) if of.type is Spread}
        parts = {part: Spread(**value) for part, value in found["part_seconds"].items()}
        return cls(**{**found, **spreads, "part_seconds": parts})
