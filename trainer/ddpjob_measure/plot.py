"""`plot`: a picture of a run from its evidence: loss, metrics and throughput over steps, with checkpoints and restarts."""

import argparse
import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.watch import history
from ddpjob_ranks.watch.history import Segment

#: Largest number of panels for metrics, in addition to those of loss and throughput.
MAX_METRICS = 4
#: A longer curve has no marker at each point.
MAX_MARKED_POINTS = 100
_LEFT_OUT = ("checkpoint_step", "learning_rate", "share/data", "share/compute", "share/communication")
_TITLES = {"accuracy": "accuracy, %", "samples_per_second": "samples/s"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run", type=Path, help="evidence file of a run, or the folder that DDPJOB_EVENTS_DIR named")
    parser.add_argument("--output", type=Path, default=Path("run.png"), help="the picture (default: run.png)")


def run(given: argparse.Namespace) -> int:
    """Draw the picture.

    Raises:
        ConfigError: there is no such run, or matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plot: matplotlib is not installed; install the extra `measure`: pip install '.[measure]'")
    name, segments = load(given.run)
    attempts = len({segment["attempt"] for segment in segments})
    last = max((step for s in segments for points in s["curves"].values() for step, _ in points), default=0)
    draw(given.output, segments, f"{name}: {last:,} steps, {attempts} attempt{'s' * (attempts > 1)}")
    print(f"wrote {given.output}")
    return 0


def load(run: Path) -> tuple[str, Sequence[Segment]]:
    """The name of a run and its segments, from its evidence file alone or from the files of all attempts in a folder.

    Raises:
        ConfigError: there is no such run, or nothing was reported in it.
    """
    try:
        if run.is_dir():
            name, segments = run.resolve().name, history.read(run)
        else:
            content = json.loads(run.read_text(encoding="utf-8"))
            name, segments = content["job"] or run.resolve().parent.name, content["history"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{run}: {type(error).__name__}: {error}; give an attempt-N-evidence.json or the folder of it"
        ) from error
    if not any(segment["curves"] for segment in segments):
        raise ConfigError(
            f"{run}: rank 0 reported no values in this run; it does so with {contract.DDPJOB_EVENTS_DIR} set"
        )
    return name, segments


def draw(path: Path, segments: Sequence[Segment], title: str) -> None:
    """Loss, metrics and throughput of a run over steps, with its checkpoints and restarts, as PNG.

    What a restart discarded is pale.
    """
    from matplotlib.figure import Figure  # optional, and slow to load

    names = dict.fromkeys(name for segment in segments for name in segment["curves"])
    metrics = [name for name in names if name not in {*_LEFT_OUT, "loss", "samples_per_second"}]
    shown = [name for name in ("loss", *metrics[:MAX_METRICS], "samples_per_second") if name in names]
    figure = Figure(figsize=(9, 1 + 2.1 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(panels, shown, strict=True):
        _draw_curve(axes, name, segments)
        _mark(axes, segments)
    panels[-1].set_xlabel("steps")
    figure.align_ylabels(panels)
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_curve(axes: Any, name: str, segments: Sequence[Segment]) -> None:
    """One curve through all segments, each up to where a later one began."""
    kept: list[list[float]] = []
    end = math.inf
    for segment in reversed(segments):
        points = segment["curves"].get(name, [])
        before = [point for point in points if point[0] <= end]
        if len(before) < len(points):
            lost = points[max(0, len(before) - 1) :]
            axes.plot(*zip(*lost, strict=True), ".-", color="0.75", label="discarded by a restart")
        kept = before + kept
        end = min(end, segment["first_step"])
    marker = "." if len(kept) <= MAX_MARKED_POINTS else ""
    axes.plot([step for step, _ in kept], [value for _, value in kept], marker=marker, linewidth=1.3)
    axes.set_ylabel(_TITLES.get(name, name))
    axes.grid(alpha=0.3)
    low, high = (limit((value for _, value in kept), default=0) for limit in (min, max))
    if name == "loss" and 0 < 20 * low < high:
        axes.set_yscale("log")
    elif name == "samples_per_second" and high:
        axes.set_ylim(0, 1.1 * high)


def _mark(axes: Any, segments: Sequence[Segment]) -> None:
    """Checkpoints as ticks at the lower edge, restarts as lines."""
    saved = [step for segment in segments for _, step in segment["curves"].get("checkpoint_step", ())]
    if saved:
        lower_edge = axes.get_xaxis_transform()
        axes.plot(
            saved, [0.03] * len(saved), "^", color="tab:green", transform=lower_edge, markersize=5, label="checkpoint"
        )
    for segment in segments[1:]:
        axes.axvline(segment["first_step"], color="tab:red", linestyle="--", linewidth=1, label="restart")
