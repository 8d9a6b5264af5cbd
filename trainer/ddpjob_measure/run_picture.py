"""`plot`: a picture of a run from its evidence: loss, metrics and throughput over steps, with checkpoints and restarts."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ddpjob_measure import plot
from ddpjob_ranks import contract
from ddpjob_ranks.errors import ConfigError
from ddpjob_ranks.watch import history
from ddpjob_ranks.watch.history import Segment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run", type=Path, help="evidence file of a run, or the folder that DDPJOB_EVENTS_DIR named")
    parser.add_argument("--output", type=Path, default=Path("run.png"), help="the picture (default: run.png)")


def run(given: argparse.Namespace) -> int:
    """Draw the picture."""
    plot.check_available()
    name, segments = load(given.run)
    attempts = len({segment["attempt"] for segment in segments})
    last = max((step for s in segments for points in s["curves"].values() for step, _ in points), default=0)
    plot.draw_run(given.output, segments, f"{name}: {last:,} steps, {attempts} attempt{'s' * (attempts > 1)}")
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
