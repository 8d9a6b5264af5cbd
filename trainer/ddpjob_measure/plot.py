"""Plots. They need matplotlib, which is in the extra `measure`."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpjob_measure.task import Figures
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.watch.history import Segment

#: Largest number of panels for metrics in the picture of a run, in addition to those of loss and throughput.
MAX_METRICS = 4
#: A longer curve has no marker at each point.
MAX_MARKED_POINTS = 100
_LEFT_OUT = ("checkpoint_step", "learning_rate", "share/data", "share/compute", "share/communication")
_TITLES = {"accuracy": "accuracy, %", "samples_per_second": "samples/s"}


def draw(path: Path, points: Sequence[tuple[str, Figures]]) -> None:
    """Images a second and the exposed share of a step over the number of processes, one line for each mode, as PNG."""
    figure = _figure(width=9)
    speed, exposed = figure.subplots(1, 2)
    for mode in dict.fromkeys(mode for mode, _ in points):
        line = [figures for its_mode, figures in points if its_mode == mode]
        sizes = [figures.world_size for figures in line]
        medians = [figures.images_per_second.median for figures in line]
        spread = [
            [median - figures.images_per_second.low for median, figures in zip(medians, line, strict=True)],
            [figures.images_per_second.high - median for median, figures in zip(medians, line, strict=True)],
        ]
        drawn = speed.errorbar(sizes, medians, yerr=spread, marker="o", capsize=3, label=mode)
        color = drawn.lines[0].get_color()
        speed.plot(sizes, [medians[0] / sizes[0] * size for size in sizes], ":", color=color, label=f"{mode}, linear")
        exposed.plot(sizes, [100 * figures.exposed_share for figures in line], marker="o", color=color, label=mode)
    speed.set(xlabel="processes", ylabel="images/s", ylim=(0, None))
    exposed.set(xlabel="processes", ylabel="exposed communication, % of a step", ylim=(0, 100))
    speed.legend()
    exposed.legend()
    _save(figure, path)


def draw_curves(path: Path, curves: Mapping[str, Mapping[int, float]]) -> None:
    """Accuracy (0 to 1) over steps, one line for each name, as PNG."""
    figure = _figure(width=6)
    axes = figure.subplots()
    for name, accuracy_by_step in curves.items():
        percent = [100 * accuracy for accuracy in accuracy_by_step.values()]
        axes.plot(list(accuracy_by_step), percent, marker="o", label=name)
    axes.set(xlabel="steps", ylabel="accuracy on held-out samples, %")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    _save(figure, path)


def draw_run(path: Path, segments: Sequence[Segment], title: str) -> None:
    """Loss, metrics and throughput of a run over steps, with its checkpoints and restarts, as PNG.

    What a restart discarded is pale.
    """
    names = dict.fromkeys(name for segment in segments for name in segment["curves"])
    metrics = [name for name in names if name not in {*_LEFT_OUT, "loss", "samples_per_second"}]
    shown = [name for name in ("loss", *metrics[:MAX_METRICS], "samples_per_second") if name in names]
    figure = _figure(width=9, height=1 + 2.1 * len(shown))
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
    _save(figure, path)


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


def check_available() -> None:
    """To be called before what takes long.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plot: matplotlib is not installed; install the extra `measure`: pip install '.[measure]'")


def _figure(*, width: float, height: float = 4) -> Any:
    from matplotlib.figure import Figure  # optional, and slow to load

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
