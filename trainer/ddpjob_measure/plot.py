"""Plots. They need matplotlib, which is in the extra `measure`."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpjob_measure.task import Figures
from ddpjob_ranks.errors import ConfigError


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


def check_available() -> None:
    """To be called before what takes long.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plot: matplotlib is not installed; install the extra `measure`: pip install '.[measure]'")


def _figure(*, width: float) -> Any:
    from matplotlib.figure import Figure  # optional, and slow to load

    return Figure(figsize=(width, 4), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
