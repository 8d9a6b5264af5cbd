"""`ddpjob report`."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from ddpjob_cli.events import events_if_allowed
from ddpjob_cli.options import JobOrRun, look_at
from ddpjob_cli.output import note


def command(
    job: JobOrRun,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write", show_default="JOB.html")
    ] = None,
) -> None:
    """Write one HTML page about a job to send to a colleague: outcome, attempts, time, curves, ranks, events and manifest.

    The page needs no other file and no network. Values of environment variables are left out of it.

    [bold]Example[/bold]

      ddpjob report resnet18 -o resnet18.html
    """
    from importlib.metadata import version

    with look_at(job) as client:
        seen = client.get(job)
        from ddpjob_cli.curves import read_curves
        from ddpjob_cli.explanation import explained
        from ddpjob_cli.report_page import page

        pods = client.pods(seen)
        events = events_if_allowed(client, seen)
        curves = read_curves(client.logs(job, ranks=[0], attempt="all", on_note=note))
    current = [pod for pod in pods if pod.attempt == seen.status.attempt]
    images = sorted({pod.body["spec"]["containers"][0].get("image", "") for pod in pods})
    text = page(
        seen,
        pods,
        events,
        curves,
        explained(seen, current, events),
        versions={"ddpjob command": version("ddpjob"), "image of the pods": ", ".join(images) or "no pods are left"},
        created=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    )
    file = output or Path(Path(f"{seen.name}.html").name)  # the name may come from the directory of somebody else's run
    with open(file, "w", encoding="utf-8", opener=_private) as page_file:
        page_file.write(text)
    note(f"wrote {file}")


def _private(path: str, flags: int) -> int:
    """Open a file that only the user may read, and no link: a cloned repository may have one of this name."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
