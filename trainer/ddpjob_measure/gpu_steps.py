"""The steps of `gpu`, in the order of their value. Each yields rows, and raises an error where something is wrong."""

import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch

from ddpjob_measure import images, outcome, smoke
from ddpjob_measure.carry import TEST_DATA
from ddpjob_measure.task import Figures, MeasureError, Task
from ddpjob_measure.verify_resume import Run
from ddpjob_measure.workbench import Row, Skipped, Step, Workbench
from ddpjob_ranks import contract
from ddpjob_trainer import recipes
from ddpjob_trainer.recipe_names import short_names

#: Dense bfloat16 operations a second, by the vendor's data sheets (SXM modules), by a part of the device's name.
BF16_PEAKS: Final = {"H200": 989.5e12, "H100": 989.5e12, "A100": 312e12, "B200": 2250e12}
#: Relative difference of the first loss in bfloat16 from that in float32, beyond which something is wrong.
FIRST_LOSS_TOLERANCE: Final = 0.03
#: A share of CIFAR-10's held-out images; the JPEG copy in the carried folder does not allow 94 % (trainer/README.md).
TARGETS: Final = (0.90, 0.94)
STALL_LINE: Final = re.compile(r"checkpoint of step (\d+): stalled (\S+) ms, written in (\S+) s")
RESTART: Final = re.compile(
    r"(?s)killed after step (\d+) at (\S+)\n.*resumed from step (\d+) in memory.*step \d+ after the restart at (\S+)\n"
)
COMPILE_LINE: Final = re.compile(r"(model compiled for .*|torch\.compile failed.*)")
PROFILE_LINE: Final = re.compile(r"profile ((?:fast|exact): .*)")
NOTES: Final = (
    (
        "recipes: losses of the first steps; eager float32 is the profile exact. The difference is relative; weights differ"
        " more with each step, so only the first step has a bound."
    ),
    "speedrun: training seconds leave out start, compilation and evaluations; whole seconds are those of the process.",
    (
        "resnet50: share of peak = images/s x operations an image / peak; operations are those of the matrix products and"
        " convolutions of one forward and backward pass, by torch.utils.flop_counter, two for each multiply-add."
    ),
    "kernels: share of the time of all kernels of one step.",
)


def smoke_test(bench: Workbench) -> Iterator[Row]:
    """NCCL as one rank; then two ranks on one GPU by gloo, since NCCL refuses two ranks on one GPU."""
    fast, one = ("nccl", "cuda:0") if bench.device == "cuda" else ("gloo", "cpu")
    runs = [(fast, 1), ("gloo", 2), *([("fault", 1)] if bench.fault else [])]
    for checks, world_size in runs:
        began, meeting = time.monotonic(), bench.folder("smoke") / "file"
        options = ["--checks", checks, "--device", one, "--world-size", str(world_size), "--file", str(meeting)]
        with ThreadPoolExecutor(world_size) as pool:
            ranks = [
                pool.submit(bench.output_of, ["ddpjob_measure.smoke", *options, "--rank", str(rank)])
                for rank in range(world_size)
            ]
            lines = [line for rank in ranks for line in rank.result().splitlines() if line.startswith(smoke.PREFIX)]
        for line in lines:
            check, _, result = line.removeprefix(smoke.PREFIX).partition(" ")
            yield {"checks": checks, "ranks": world_size, "device": one, "check": check, "result": result}
        yield {"checks": checks, "ranks": world_size, "check": "all", "seconds": time.monotonic() - began}


#: A recipe as a user writes one.
MAP_STYLE = "examples.own_recipe:digits_mlp"


def recipes_in_bfloat16(bench: Workbench) -> Iterator[Row]:
    """Every built-in recipe, and one with a map-style data set, for a few steps: eager float32, then the profile fast without and with torch.compile."""
    kinds = {
        "eager float32": {"profile": "exact"},
        "fast, eager": {"profile": "fast", "compile": "never"},
        "fast, compiled": {"profile": "fast"},
    }
    names = ["digits", "speedrun-cifar10"] if bench.quick else list(short_names())
    names.append(MAP_STYLE)
    if bench.device == "cpu":
        del kinds["fast, compiled"]  # the trainer compiles on GPUs only
    wrong: list[str] = []
    environs = dict[str, Mapping[str, str]]()
    for name in names:
        try:
            environs[name] = _images_for(bench, name)
        except Exception as error:  # noqa: BLE001 - the others are to be tried, whatever is wrong with this one
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    # Compilers use the CPU, so several recipes are tried at once; nothing is timed here.
    with ThreadPoolExecutor(1 if bench.quick else 5) as pool:
        tried = [pool.submit(_tried, bench, name, kinds, environ) for name, environ in environs.items()]
        for done in as_completed(tried):
            rows, problems = done.result()
            yield from rows  # at once, since the run may be cut off
            wrong += problems
    if wrong:
        raise MeasureError("\n".join(wrong))


def _tried(
    bench: Workbench, recipe: str, kinds: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str]
) -> tuple[list[Row], list[str]]:
    """A row for each kind of a recipe, and what is wrong; the first kind is the reference."""
    rows, wrong = list[Row](), list[str]()
    reference: Run | None = None
    for number, (kind, keys) in enumerate(kinds.items()):
        try:
            losses, figures, text = _few_steps(bench, recipe, keys, environ)
        except MeasureError as error:
            wrong.append(f"{recipe}, {kind}: {error}")
            continue
        reference = losses if number == 0 else reference
        row, problem = _against(reference, losses, text)
        rows.append({"recipe": recipe, "kind": kind, **row, "peak GiB": figures.peak_memory_bytes / 2**30})
        wrong += [f"{recipe}, {kind}: {problem}"] if problem else []
    return rows, wrong


def _images_for(bench: Workbench, recipe: str) -> Mapping[str, str]:
    """The environment for a few steps of a recipe: whole batches of images, so that one shape is compiled, of all ten classes."""
    if recipe in {images.DIGITS, images.SYNTHETIC, MAP_STYLE}:
        return {}
    return bench.images(640 if bench.quick else 10 * recipes.find(recipe).defaults.global_batch_size)


def _few_steps(
    bench: Workbench, recipe: str, keys: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Run, Figures, str]:
    # resnet50-224 decodes each image for each step, and several recipes share the memory of the device.
    batch = {"globalBatchSize": 64} if bench.quick or recipe == images.LARGE else {}
    config = {"recipe": recipe, "logEverySteps": 1, **batch, **keys}
    task = Task(program="trainer", config=config, warmup_steps=5, steps=1, windows=1, options={"report": True})
    figures, text = bench.figures(task, environ)
    losses = Run(name=recipe)
    for line in text.splitlines():
        losses.read(line)
    return losses, figures, text


def _against(reference: Run | None, run: Run, text: str) -> tuple[Row, str]:
    """A row about the losses of a run, and what is wrong with them."""
    compiled, profile = COMPILE_LINE.search(text), PROFILE_LINE.search(text)
    row: Row = {"profile": profile[1] if profile else "", "compile": compiled[1] if compiled else ""}
    if not run.losses:
        return row, "no loss was printed"
    first, last = min(run.losses), max(run.losses)
    row |= {"first loss": float(run.losses[first]), "last loss": float(run.losses[last])}
    if reference is not None and reference.losses.keys() == run.losses.keys():
        apart = {s: abs(float(run.losses[s]) / float(reference.losses[s]) - 1) for s in run.losses}
        row |= {"difference at first": apart[first], "largest difference": max(apart.values())}
        if not apart[first] <= FIRST_LOSS_TOLERANCE:
            return row, f"the first loss is {apart[first]:.1%} off that of eager float32"
    return row, compiled[1] if compiled and "failed" in compiled[1] else ""


def exact_twice(bench: Workbench) -> Iterator[Row]:
    """The profile exact, twice: the same losses and weights, bit for bit."""
    recipe = "digits" if bench.quick else "resnet18-cifar10"
    keys = (f"recipe={recipe}", "profile=exact", "epochs=2", "logEverySteps=1")
    first, second = (bench.training(*keys, environ=bench.images(5120))[0] for _ in range(2))
    steps = sum(first.losses[step] == second.losses.get(step) for step in first.losses)
    equal = steps == len(first.losses) and first.weights == second.weights is not None
    yield {
        "recipe": recipe,
        "steps": len(first.losses),
        "equal losses": steps,
        "weights": str(first.weights)[:12],
        "equal": equal,
    }
    if not equal:
        raise MeasureError(f"{recipe}: two runs differ: weights {first.weights} and {second.weights}")


def verify_resume(bench: Workbench) -> Iterator[Row]:
    """A training that is killed and resumed has the bits of one that is not."""
    keys = ["recipe=digits", "epochs=4"] if bench.quick else ["recipe=resnet18-cifar10", "epochs=12"]
    arguments = ["--world-size", "1", "--kills", "1" if bench.quick else "2", "--no-speed"]
    arguments += [part for key in keys for part in ("--set", key)]
    text = bench.output_of(["ddpjob_measure", "verify-resume", *arguments], bench.images(5120))
    for line in text.splitlines():
        if line.startswith(("losses of", "weights sha256", "attempt", "uninterrupted")):
            yield {"verify-resume": line}


def restart_in_place(bench: Workbench) -> Iterator[Row]:
    """A rank that is killed starts again in place, forked before CUDA, from a copy in memory: with the bits of a whole run."""
    keys = ["recipe=digits", "epochs=60"] if bench.quick else ["recipe=resnet18-cifar10", "epochs=20"]
    keys += ["profile=exact", "logEverySteps=1", "evaluateEveryEpochs=0"]
    environ = {**bench.images(5120), contract.DDPJOB_IN_PLACE_RESTARTS: "1"}
    whole, _ = bench.training(*keys, environ=environ)
    events = bench.folder("events")
    environ |= {contract.DDPJOB_EVENTS_DIR: str(events)}
    run, text = bench.training(*keys, environ=environ, module="ddpjob_measure.killed")
    if not (restart := RESTART.search(text)):
        raise MeasureError(f"the rank was not killed, or did not continue from a copy in memory:\n{text[-2000:]}")
    killed_step, killed_at, resumed_step, done_at = map(float, restart.groups())
    yield {
        "killed after step": int(killed_step),
        "continued from step": int(resumed_step),
        "seconds to the first step": done_at - killed_at,
        **_seconds_of_the_last_start(events),
        "weights": run.weights,
    }
    if run.weights != whole.weights or any(run.losses[step] != whole.losses[step] for step in whole.losses):
        raise MeasureError(f"the training without a kill has other bits: weights {whole.weights}")


def _seconds_of_the_last_start(events: Path) -> Row:
    """By span, those of rank 0 from the start of its last process to its first step: connect has NCCL, setup the CUDA context."""
    seconds: dict[str, Any] = {}
    for span in outcome.spans_of(events):
        if span["span"] == "start":
            seconds = {}
        if "first_step s" not in seconds:
            seconds[f"{span['span']} s"] = seconds.get(f"{span['span']} s", 0.0) + span["seconds"]
    return seconds


def checkpoint_stall(bench: Workbench) -> Iterator[Row]:
    """How long training waits for a checkpoint of a ResNet-50 with momentum (205 MB)."""
    keys = ["recipe=digits", "epochs=2"] if bench.quick else ["recipe=resnet50-cifar10", "epochs=3", "compile=never"]
    environ = {**bench.images(5120), contract.DDPJOB_CHECKPOINT_DIR: str(bench.folder("checkpoints"))}
    _, text = bench.training(*keys, "checkpointEverySteps=5", environ=environ)
    for step, stalled, written in STALL_LINE.findall(text):
        yield {"step": int(step), "stalled ms": float(stalled.replace(",", "")), "written in s": float(written)}
    if not STALL_LINE.search(text):
        raise MeasureError(f"no checkpoint was reported:\n{text[-2000:]}")


def speedrun(bench: Workbench) -> Iterator[Row]:
    """`speedrun-cifar10` over seeds, compiled and not; one more seed each as long as there is time."""
    if bench.quick:
        recipe, environ, more = "digits", {}, ["epochs=2"]
    elif images.archive() or os.environ.get(contract.DDPJOB_DATA_DIR):
        recipe, environ, more = "speedrun-cifar10", bench.images(50_000, 10_000), []
    else:
        raise Skipped(f"no images of CIFAR-10: run `make gpu-wheels` with {TEST_DATA} set, and carry its folder")
    longest = 0.0
    for seed, compiled in ((0, "auto"), (0, "never"), (1, "auto"), (2, "auto"), (1, "never"), (2, "never")):
        if longest > bench.seconds_left:
            return
        began, events = time.monotonic(), bench.folder("events")
        keys = [f"recipe={recipe}", f"seed={seed}", f"compile={compiled}", *more]
        bench.training(*keys, environ={**environ, contract.DDPJOB_EVENTS_DIR: str(events)})
        longest = max(longest, time.monotonic() - began)
        yield {"recipe": recipe, "compile": compiled, **outcome.outcome_of(events, seed).row(*TARGETS)}


def resnet18(bench: Workbench) -> Iterator[Row]:
    """ResNet-18 on CIFAR-10: this trainer, the plain DDP script, and that with autocast, channels_last and compile."""
    workers = min(14, max(1, (os.cpu_count() or 1) - 2))
    batch, num_train, steps = (16, 320, 2) if bench.quick else (512, 40 * 512, 25)
    keys = {"recipe": "resnet18-cifar10", "globalBatchSize": batch}
    plain = {"num_workers": workers}
    contenders: dict[str, tuple[str, Row, Row]] = {
        "trainer fast": ("trainer", {"profile": "fast"}, {"profile": True}),
        "plain": ("plain", {}, plain),
        "trainer exact": ("trainer", {"profile": "exact"}, {}),
        "plain tuned": ("plain", {}, {**plain, "tuned": True}),
    }
    failures: list[str] = []
    kernels: list[Row] = []
    for name, (program, more, options) in contenders.items():
        task = Task(
            program=program,
            config={**keys, **more},
            warmup_steps=1 if bench.quick else 10,
            steps=steps,
            windows=1,
            options=options,
        )
        try:
            figures, _ = bench.figures(task, bench.images(num_train))
        except MeasureError as error:  # the others still count
            failures.append(f"{name}: {error}")
            continue
        kernels += figures.extra.get("kernels", [])
        yield {"what": name, **figures.row()}
    for kernel in kernels:
        yield {"what": "kernel of trainer fast", **kernel}
    if failures:
        raise MeasureError("\n".join(failures))


def resnet50(bench: Workbench) -> Iterator[Row]:
    """ResNet-50 at 224 pixels on random images: images/s, share of the bf16 peak, kernels of one step."""
    batch, steps = (2, 1) if bench.quick else (256, 20)
    task = Task(
        program="trainer",
        config={"recipe": "resnet50-224-synthetic", "globalBatchSize": batch, "profile": "fast"},
        warmup_steps=1 if bench.quick else 10,
        steps=steps,
        windows=1 if bench.quick else 2,
        options={"profile": True},
    )
    figures, _ = bench.figures(task)
    operations = operations_per_image()
    row = {"what": "trainer fast", **figures.row(), "GFLOP an image": operations / 1e9}
    name = torch.cuda.get_device_name() if bench.device == "cuda" else ""
    for part, peak in BF16_PEAKS.items():
        if part in name:
            rate = figures.images_per_second.median * operations
            row |= {"TFLOP/s": rate / 1e12, "peak TFLOP/s": peak / 1e12, "share of peak %": 100 * rate / peak}
    yield row
    for kernel in figures.extra["kernels"]:
        yield {"what": "kernel", **kernel}


def operations_per_image() -> int:
    """Of one forward and backward pass of ResNet-50 at 224 pixels: two for each multiply-add, no weight update."""
    from torch.utils.flop_counter import FlopCounterMode  # it needs triton, which not every CPU build has

    with torch.device("meta"):
        model = recipes.find("resnet50-224-synthetic").model(SimpleNamespace(num_classes=1000))
        images_BCHW = torch.empty(1, 3, 224, 224)  # noqa: N806 - a shape
    with FlopCounterMode(display=False) as counter:
        model(images_BCHW).sum().backward()
    return int(counter.get_total_flops())


STEPS: Final = (
    Step(name="smoke", least_seconds=20, limit_seconds=90, run=smoke_test),
    Step(name="recipes", least_seconds=60, limit_seconds=200, run=recipes_in_bfloat16),
    Step(name="exact", least_seconds=25, limit_seconds=90, run=exact_twice),
    Step(name="resume", least_seconds=45, limit_seconds=120, run=verify_resume),
    Step(name="in-place", least_seconds=45, limit_seconds=120, run=restart_in_place),
    Step(name="stall", least_seconds=20, limit_seconds=50, run=checkpoint_stall),
    # It takes as many seeds as fit into its limit, which therefore leaves enough for the last two.
    Step(name="speedrun", least_seconds=40, limit_seconds=70, run=speedrun),
    Step(name="resnet50", least_seconds=30, limit_seconds=80, run=resnet50),
    Step(name="resnet18", least_seconds=40, limit_seconds=150, run=resnet18),
)
