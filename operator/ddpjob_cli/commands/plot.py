"""`ddpjob plot`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpjob_cli.failures import CommandError
from ddpjob_cli.options import JobOrRun, OutputOption, complete_jobs, look_at
from ddpjob_cli.output import console, note, print_data

if TYPE_CHECKING:
    from ddpjob_cli.curves import Curves

_HEIGHT = 18


def command(
    job: JobOrRun,
    metric: Annotated[
        list[str] | None, typer.Option(help="loss, throughput or a named metric; all by default", show_default=False)
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help="Draw this job as well", autocompletion=complete_jobs, show_default=False)
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write x.csv or x.png instead of drawing here", show_default=False)
    ] = None,
    output: OutputOption = None,
) -> None:
    """Draw the curves of a job, from the log of rank 0 in all attempts whose pods are still there. Restarts are marked.

    [bold]Examples[/bold]

      ddpjob plot resnet18

      ddpjob plot resnet18 --metric loss --compare resnet18-large-batch

      ddpjob plot resnet18 --save resnet18.csv

      ddpjob plot resnet18 -o name
    """
    from ddpjob_cli.curves import as_csv

    jobs = {name: _curves(name) for name in (job, compare) if name}
    metrics = [name for name in jobs[job].metrics if not metric or name in metric]
    if missing := set(metric or ()).difference(metrics):
        found = ", ".join(jobs[job].metrics) or "none"
        raise CommandError(f"{job}: the log of rank 0 has no values of {min(missing)}; found: {found}")
    if not metrics:
        raise CommandError(
            f"{job}: the log of rank 0 has no values; a program prints them in lines such as"
            ' ddpjob-progress {"step": 10, "loss": 0.3, "metrics": {"accuracy": 93.1}}'
        )
    if output:
        points = {
            job: {name: list(map(asdict, curves.points.get(name, ()))) for name in metrics}
            for job, curves in jobs.items()
        }
        print_data(points, output, names=metrics)
    elif save is None:
        for name in metrics:
            _draw(name, jobs)
    elif save.suffix == ".csv":
        save.write_text(as_csv(jobs[job]), encoding="utf-8")
    elif save.suffix == ".png":
        _write_png(save, metrics, jobs)
    else:
        raise ValueError(f"--save {save}: give a name that ends with .csv or .png")
    if save is not None:
        note(f"wrote {save}")


def _curves(name: str) -> "Curves":
    from ddpjob_cli.curves import read_curves

    with look_at(name) as client:
        return read_curves(client.logs(name, ranks=[0], attempt="all", on_note=note))


def _draw(metric: str, jobs: "dict[str, Curves]") -> None:
    import plotext
    from rich.text import Text

    from ddpjob_cli.curves import ticks, title_of
    from ddpjob_cli.rendering import number

    out = console()
    found = [(name, point) for name, curves in jobs.items() for point in curves.points.get(metric, ())]
    are_compared = len(jobs) > 1
    # A job that is compared may have no values.
    jobs = {name: curves for name, curves in jobs.items() if curves.points.get(metric)}
    if len({point.step for _, point in found}) == 1:
        for name, point in found:
            out.print(
                f"{name}: {title_of(metric)} is {number(point.value)} at step {point.step}; a curve needs a second step"
            )
        return
    plotext.clear_figure()
    plotext.theme("clear" if out.no_color or not out.is_terminal else "pro")
    plotext.plotsize(min(out.width, 110), _HEIGHT)
    plotext.title(title_of(metric))
    for name, curves in jobs.items():
        points = curves.points.get(metric, ())
        plotext.plot([p.step for p in points], [p.value for p in points], label=name if are_compared else None)
        for step in curves.restarts:
            plotext.vline(step, color="red")
    plotext.xticks(ticks(p.step for curves in jobs.values() for p in curves.points.get(metric, ())))
    plotext.xlabel("step" + (" (vertical lines: restarts)" if any(c.restarts for c in jobs.values()) else ""))
    out.print(Text.from_ansi(plotext.build()))


def _write_png(path: Path, metrics: list[str], jobs: "dict[str, Curves]") -> None:
    from ddpjob_cli.curves import title_of

    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError("--save x.png needs matplotlib: pip install matplotlib; or save a .csv") from None
    figure = Figure(figsize=(9, 3.2 * len(metrics)), layout="constrained")
    for axes, metric in zip(figure.subplots(len(metrics), squeeze=False)[:, 0], metrics, strict=True):
        for name, curves in jobs.items():
            points = curves.points.get(metric, ())
            axes.plot([p.step for p in points], [p.value for p in points], ".-", label=name)
            for step in curves.restarts:
                axes.axvline(step, color="tab:red", linestyle=":", linewidth=1)
        axes.set(xlabel="step", ylabel=title_of(metric))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)
