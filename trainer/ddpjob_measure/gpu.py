"""`gpu`: all that is to be known of a GPU, in one command of eight minutes that needs no network (see also `carry`).

The steps run in the order of their value (`gpu_steps`). Each has a limit, and one that no longer fits is skipped. The
record is written after each row, so a run that is cut off leaves what it has found; a step that fails leaves its error
there, and the next one runs. With `--continue` a run of the same name takes the steps that have not ended well; those that
compare speeds go on where they stopped. What each command printed is in a folder next to the record.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch

from ddpjob_measure import carry, gpu_steps, record
from ddpjob_measure.record import positive
from ddpjob_measure.task import MeasureError, Spread
from ddpjob_measure.workbench import Row, Skipped, Step, Workbench
from ddpjob_ranks import contract

#: By default; one command on a rented machine often has ten minutes.
BUDGET_SECONDS = 470
#: Of nvidia-smi, whose answer is waited for so long: with a broken driver it does not end.
QUERY = "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm,compute_cap"
QUERY_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What has become of a step."""

    name: str
    about: str
    status: Literal["running", "ok", "failed", "skipped"] = "running"
    seconds: float = 0.0
    note: str = ""
    rows: list[Row] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: the same flow without a GPU")
    parser.add_argument("--quick", action="store_true", help="very little of each step, to test the flow")
    parser.add_argument("--fault", action="store_true", help="also cause an error of the GPU in a process of its own")
    parser.add_argument("--seconds", type=positive, default=BUDGET_SECONDS, help=f"in all (default: {BUDGET_SECONDS})")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in gpu_steps.STEPS], help="these steps alone")
    parser.add_argument("--continue", dest="continues", action="store_true", help="leave out what --name has already")
    parser.add_argument(
        "--foreign",
        type=Path,
        metavar="DIR",
        help="also measure what is there of airbench94*.py and torchvision's references/classification",
    )
    record.add_options(parser, "gpu", results=Path())


def run(given: argparse.Namespace) -> int:
    """Take all steps; the exit code is 1 where one of them failed.

    Raises:
        MeasureError: there is no GPU, and `--device cpu` was not given.
    """
    deadline = time.monotonic() + given.seconds
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before CUDA is asked anything, here and in the children
    elif not torch.cuda.is_available():
        raise MeasureError(f"gpu: torch {torch.__version__} sees no GPU; --device cpu runs the same flow without one")
    os.environ.setdefault(carry.TEST_DATA, str(carry.folder()))
    path = record.path_of(given)
    assert path is not None, "it has a default"
    facts: dict[str, Any] = {"device": given.device, "quick": given.quick, **versions(), **record.facts()}
    outputs = path.with_name(f"{path.name}-outputs")
    say(f"record {path}.md, {path}.json, outputs in {outputs}; at most {given.seconds} s")
    outcomes = {outcome.name: outcome for outcome in earlier(path, facts)} if given.continues else {}
    with Workbench(
        device=given.device,
        quick=given.quick,
        fault=given.fault and given.device == "cuda",
        foreign=given.foreign and given.foreign.absolute(),
        deadline=deadline,
        outputs=outputs,
    ) as bench:
        for step in gpu_steps.STEPS:
            before = outcomes.get(step.name)
            if (before and before.status == "ok") or (given.only and step.name not in given.only):
                continue
            bench.found = before.rows if before else []
            outcomes[step.name] = Outcome(name=step.name, about=step.about)
            take(step, outcomes[step.name], bench, lambda: save(path, facts, outcomes))
    print("\n" + page(facts, in_order(outcomes)))
    failed = any(outcome.status == "failed" for outcome in outcomes.values())
    return contract.EXIT_PROGRAM_ERROR if failed else contract.EXIT_SUCCESS


def earlier(path: Path, facts: Mapping[str, Any]) -> list[Outcome]:
    """What has become of the steps of an earlier run of this name.

    Raises:
        MeasureError: that run had another device or another torch, or did less of each step.
    """
    try:
        text = path.with_name(f"{path.name}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    found = json.loads(text, object_hook=Spread.from_json)
    for name in ("device", "quick", "gpus", "torch"):
        if (then := found["surroundings"].get(name)) != (now := facts.get(name)):
            raise MeasureError(
                f"gpu: --continue: {path}.json has {name} {then}, and here it is {now}; give another --name"
            )
    return [Outcome(**row) for row in found["rows"]]


def take(step: Step, outcome: Outcome, bench: Workbench, saved: Any) -> None:
    """Take one step, whatever becomes of it; `saved` is called after each of its rows."""
    if (left := bench.begin(step)) < step.least_seconds and not bench.quick:
        outcome.status, outcome.note = "skipped", f"{left:.0f} s are left, and it takes {step.least_seconds} s or more"
        outcome.rows = list(bench.found)
        say(f"{step.name}: skipped: {outcome.note}")
        saved()
        return
    say(f"{step.name}: {step.about} (at most {bench.seconds_left:.0f} s of {left:.0f} s)")
    began = time.monotonic()
    saved()
    try:
        for row in step.run(bench):
            outcome.rows.append(row)
            outcome.seconds = time.monotonic() - began
            say(f"  {record.line(row)}")
            saved()
        if outcome.rows:
            outcome.status = "ok"
        else:
            outcome.status = "failed"
            outcome.note = f"the step has found nothing; {bench.seconds_left:.0f} s of its time are left"
    except Skipped as reason:
        outcome.status, outcome.note = "skipped", str(reason)
    except Exception as error:  # noqa: BLE001 - the other steps are to run, whatever is wrong with this one
        outcome.status, outcome.note = "failed", f"{type(error).__name__}: {error}"
        traceback.print_exc()
    outcome.seconds = time.monotonic() - began
    say(f"{step.name}: {outcome.status} after {outcome.seconds:.0f} s{': ' * bool(outcome.note)}{outcome.note[:2000]}")
    saved()


def in_order(outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    """As the steps are taken: a run that continues may have left out some that an earlier one had."""
    return [outcomes[step.name] for step in gpu_steps.STEPS if step.name in outcomes]


def save(path: Path, facts: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> None:
    """Write the record as it is now."""
    record.save(path, page(facts, in_order(outcomes)), facts, [asdict(outcome) for outcome in in_order(outcomes)])


def page(facts: Mapping[str, Any], outcomes: list[Outcome]) -> str:
    """Markdown: what has become of each step, then each step's rows."""
    summary = [
        {"step": o.name, "status": o.status, "seconds": f"{o.seconds:.0f}", "note": first_line(o.note)}
        for o in outcomes
    ]
    tables = [record.table(summary)]
    for outcome in outcomes:
        if outcome.rows:
            tables.append(f"## {outcome.name}\n\n{outcome.about}\n\n{record.table(outcome.rows)}")
        if outcome.status == "failed":
            tables.append(f"### Error of {outcome.name}\n\n```text\n{outcome.note[-3000:]}\n```")
    return record.page("GPU", facts, tables, gpu_steps.NOTES)


def first_line(text: str) -> str:
    """Of a note, for a table."""
    return text.strip().partition("\n")[0][:200]


def versions() -> dict[str, str]:
    """What `surroundings` does not ask for: the GPU's driver and the libraries that torch brings."""
    found = {"cuda": str(torch.version.cuda)}
    with suppress(PackageNotFoundError):
        found["triton"] = version("triton")
    if torch.cuda.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    if shutil.which("nvidia-smi"):
        found["nvidia_smi"] = _nvidia_smi()
    return found


def _nvidia_smi() -> str:
    """The facts of each GPU, or why they are not known: the steps run without them."""
    try:
        done = subprocess.run(
            ["nvidia-smi", QUERY, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=QUERY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return " / ".join((done.stdout or done.stderr).strip().splitlines())[:500]


def say(text: str) -> None:
    """A line of the output, at once: the command may be cut off."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)
    sys.stderr.flush()
