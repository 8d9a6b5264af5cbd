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

from ddpjob_measure import foreign, images, killed, outcome, session_cost, smoke
from ddpjob_measure.carry import TEST_DATA
from ddpjob_measure.task import Figures, MeasureError, Task
from ddpjob_measure.verify_resume import Run
from ddpjob_measure.workbench import Row, Skipped, Step, Workbench
from ddpjob_ranks import contract
from ddpjob_ranks.distributed import NCCL_SETTINGS
from ddpjob_trainer import recipes
from ddpjob_trainer.recipe_names import short_names

#: Dense bfloat16 operations a second, by the vendor's data sheets, of whole GPUs by name. MIG slices and PCIe cards have other names.
BF16_PEAKS: Final = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989.5e12,
    "NVIDIA H200": 989.5e12,
    "NVIDIA B200": 2250e12,
}
#: Relative difference of the first loss in bfloat16 from that in float32, beyond which something is wrong.
FIRST_LOSS_TOLERANCE: Final = 0.03
#: A share of CIFAR-10's held-out images; the JPEG copy in the carried folder does not allow 94 % (trainer/README.md).
TARGETS: Final = (0.90, 0.94)
STALL_LINE: Final = re.compile(r"checkpoint of step (\d+): stalled (\S+) ms, written in (\S+) s")
RESTART: Final = re.compile(
    r"(?s)killed after step (\d+) at (\S+), (\S+) GiB free, leaving (\d+)\n.*resumed from step (\d+) in memory"
    r".*step \d+ after the restart at (\S+), (\S+) GiB free\n"
)
#: The share of the memory that a rank had found free which the next one must find. Assumption, not measured on a GPU.
FREE_AGAIN: Final = 0.9
#: In the end of the output of a rank that NCCL did not let share its GPU.
REFUSAL: Final = re.compile(r"Duplicate GPU detected.*|Multiple Ranks are using the same GPU.*|ncclInvalidUsage.*")
#: Where torch.compile does without CUDA graphs although they were asked for.
NO_GRAPHS: Final = re.compile(r"skipping cudagraphs.*")
GRAPHS: Final = {"TORCHINDUCTOR_CUDAGRAPHS": "1", "TORCH_LOGS": "perf_hints"}
TUNED: Final = {"tuned": True}
#: Ways to train, in the order of their value: the program, keys of its configuration, its options, variables. `tuned` is with autocast to
#: bfloat16, channels_last and torch.compile.
WAYS: Final[Mapping[str, tuple[str, Row, Row, Mapping[str, str]]]] = {
    "trainer": ("trainer", {"profile": "fast"}, {"profile": True}, {}),
    "plain": ("plain", {}, {}, {}),
    "plain, tuned": ("plain", {}, TUNED, {}),
    "trainer, eager": ("trainer", {"profile": "fast", "compile": "never"}, {}, {}),
    "trainer, CUDA graphs": ("trainer", {"profile": "fast"}, {}, GRAPHS),
    "plain, tuned, CUDA graphs": ("plain", {}, TUNED, GRAPHS),
    "trainer, exact": ("trainer", {"profile": "exact"}, {}, {}),
}
QUICK_WAYS: Final = ("trainer", "plain", "torchvision's loop")  # a compiler needs minutes on busy CPUs
NUM_WORKERS: Final = min(14, max(1, (os.cpu_count() or 1) - 2))
#: A measured process is not begun with less.
LEAST_SECONDS: Final = 15.0
TESTS: Final = Path(__file__).parents[2] / "tests"
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


def trainer_tests(bench: Workbench) -> Iterator[Row]:
    """The trainer's unit tests of what runs on a device, on this one."""
    environ = {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}
    options = ["-c", os.devnull, "--noconftest", "--quiet", "-p", "no:cacheprovider", "-k", f"on_{bench.device}"]
    files = sorted([*TESTS.glob("unit/ranks/test_*.py"), *TESTS.glob("unit/trainer/test_*.py")])
    using = [str(path) for path in files if "@on_each_device" in path.read_text(encoding="utf-8")]
    yield {"tests": bench.output_of(["pytest", *options, *using], environ).strip().rpartition("\n")[2]}


def ranks(bench: Workbench) -> Iterator[Row]:
    """Process groups: NCCL as one rank, several ranks on one GPU by NCCL where it allows that, and by gloo."""
    fast, one = ("nccl", "cuda:0") if bench.device == "cuda" else ("gloo", "cpu")
    shared = [("nccl", 2)] if bench.device == "cuda" else []
    for checks, world_size in [(fast, 1), ("gloo", 2), *shared, *([("fault", 1)] if bench.fault else [])]:
        began, meeting = time.monotonic(), bench.folder("smoke") / "file"
        what = {"checks": checks, "ranks": world_size, "device": one}
        options = ["--checks", checks, "--device", one, "--world-size", str(world_size), "--file", str(meeting)]
        environ = smoke.SHARED_GPU if world_size > 1 else smoke.VERBOSE
        with ThreadPoolExecutor(world_size) as pool:
            outputs = [
                pool.submit(bench.output_of, ["ddpjob_measure.smoke", *options, "--rank", str(rank)], environ)
                for rank in range(world_size)
            ]
        try:
            lines = [line for output in outputs for line in output.result().splitlines()]
        except MeasureError as error:
            if (checks, world_size) not in shared or not (refusal := REFUSAL.search(str(error))):
                raise
            yield {**what, "check": "all", "result": f"NCCL refuses: {refusal[0]}"}
            continue
        for line in lines:
            if line.startswith(smoke.PREFIX):
                check, _, result = line.removeprefix(smoke.PREFIX).partition(" ")
                yield {**what, "check": check, "result": result}
        if (checks, world_size) == ("nccl", 1):
            yield {**what, "check": "settings", "result": settings_in_effect("\n".join(lines))}
        yield {**what, "check": "all", "seconds": time.monotonic() - began}


def settings_in_effect(text: str) -> str:
    """What torch prints of how it runs NCCL, next to what it was told.

    Raises:
        MeasureError: it does not do what it was told.
    """
    said = {name: re.search(rf"{name}(?: \([^)]*\))?: (\w+)", text) for name in NCCL_SETTINGS}
    wrong = [f"{name}={found[1]}" for name, found in said.items() if found and found[1] != NCCL_SETTINGS[name]]
    if wrong:
        raise MeasureError(f"torch runs NCCL with {', '.join(wrong)}; it was told {NCCL_SETTINGS}")
    unsaid = [name for name, found in said.items() if not found]
    return f"torch says {len(said) - len(unsaid)} as it was told, and nothing of {', '.join(unsaid)}"


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
    for recipe in ("digits",) if bench.quick else ("digits", "resnet18-cifar10"):
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
    """A rank that is killed, with most of the GPU's memory in use and a data worker alive, starts again in place, forked before CUDA, from a copy in memory: with the bits of a whole run."""
    keys = ["recipe=digits", "epochs=60"] if bench.quick else ["recipe=resnet18-cifar10", "epochs=20"]
    keys += ["profile=exact", "logEverySteps=1", "evaluateEveryEpochs=0"]
    environ = {**bench.images(5120), contract.DDPJOB_IN_PLACE_RESTARTS: "1"}
    whole, _ = bench.training(*keys, environ=environ)
    events = bench.folder("events")
    environ |= {contract.DDPJOB_EVENTS_DIR: str(events)}
    run, text = bench.training(*keys, environ=environ, module="ddpjob_measure.killed")
    if not (restart := RESTART.search(text)):
        raise MeasureError(f"the rank was not killed, or did not continue from a copy in memory:\n{text[-2000:]}")
    killed_step, killed_at, taken, worker, resumed_step, done_at, free = map(float, restart.groups())
    yield {
        "killed after step": int(killed_step),
        "continued from step": int(resumed_step),
        "seconds to the first step": done_at - killed_at,
        **_seconds_of_the_last_start(events),
        "GiB free when killed": taken,
        "GiB free again": free,
        "weights": str(run.weights)[:12],
    }
    if Path(f"/proc/{worker:.0f}").exists():
        raise MeasureError(f"process {worker:.0f}, which the rank that was killed had forked, still runs")
    if free < FREE_AGAIN * taken / (1 - killed.TAKEN):
        raise MeasureError(
            f"of the memory that was free before the rank took {killed.TAKEN:.0%} of it, {free:.1f} GiB are free again"
        )
    if run.weights != whole.weights or any(run.losses[step] != whole.losses[step] for step in whole.losses):
        raise MeasureError(f"the training without a kill has other bits: weights {whole.weights}")


def _seconds_of_the_last_start(events: Path) -> Row:
    """By span, those of rank 0 from the start of its last process to its first step: rendezvous has the CUDA context and the wait for memory, connect has NCCL."""
    seconds: dict[str, Any] = {}
    for span in outcome.spans_of(events):
        if span["span"] == "start":
            seconds = {}
        if "first_step s" not in seconds:
            seconds[f"{span['span']} s"] = seconds.get(f"{span['span']} s", 0.0) + span["seconds"]
    return seconds


def overhead(bench: Workbench) -> Iterator[Row]:
    """What a session adds to a step of a script, without and with copies of the state in memory; how long training waits for a checkpoint of a ResNet-50 with momentum (205 MB)."""
    for what, environ in {"a session": {}, "with copies in memory": {contract.DDPJOB_IN_PLACE_RESTARTS: "1"}}.items():
        text = bench.output_of(["ddpjob_measure.session_cost"], environ)
        found = re.search(rf"{session_cost.PREFIX}(\S+) (\S+)", text)
        if found is None:
            raise MeasureError(f"no figures were printed:\n{text[-2000:]}")
        yield {"what": what, "us a step without": float(found[1]), "us a step": float(found[2])}
    keys = ["recipe=digits", "epochs=2"] if bench.quick else ["recipe=resnet50-cifar10", "epochs=3", "compile=never"]
    environ = {**bench.images(5120), contract.DDPJOB_CHECKPOINT_DIR: str(bench.folder("checkpoints"))}
    _, text = bench.training(*keys, "checkpointEverySteps=5", environ=environ)
    for step, stalled, written in STALL_LINE.findall(text):
        yield {
            "what": f"checkpoint of step {step}",
            "stalled ms": float(stalled.replace(",", "")),
            "written in s": float(written),
        }
    if not STALL_LINE.search(text):
        raise MeasureError(f"no checkpoint was reported:\n{text[-2000:]}")


def speedrun(bench: Workbench) -> Iterator[Row]:
    """`speedrun-cifar10` compiled, not, and with CUDA graphs, in turn with airbench94 where there is one, then more seeds as long as there is time."""
    if bench.quick:
        recipe, environ, more = "digits", {}, ["epochs=2"]
    elif images.archive() or os.environ.get(contract.DDPJOB_DATA_DIR):
        recipe, environ, more = "speedrun-cifar10", bench.images(50_000, 10_000), []
    else:
        raise Skipped(f"no images of CIFAR-10: run `make gpu-wheels` with {TEST_DATA} set, and carry its folder")
    scripts = sorted(bench.foreign.glob("airbench94*.py")) if bench.foreign else []
    wanted = [(0, "compile auto"), (0, "compile never")]
    if not bench.quick:
        wanted += [(0, "CUDA graphs"), *((seed, how) for seed in (1, 2) for _, how in wanted)]
    wrong: list[str] = []
    yield from bench.found
    for number, (seed, how) in enumerate(wanted):
        row: Row = {"what": f"{recipe}, seed {seed}, {how}"}
        if not _is_found(bench, row):
            _check_time(bench)
            events = bench.folder("events")
            keys = [
                f"recipe={recipe}",
                f"seed={seed}",
                f"compile={'never' if how == 'compile never' else 'auto'}",
                *more,
            ]
            variables = {contract.DDPJOB_EVENTS_DIR: str(events), **(GRAPHS if how == "CUDA graphs" else {})}
            _, text = bench.training(*keys, environ={**environ, **variables})
            without = NO_GRAPHS.search(text)
            yield {
                **row,
                **outcome.outcome_of(events, seed).row(*TARGETS),
                **({"CUDA graphs": without[0]} if without else {}),
            }
        for script in scripts if number == 0 else ():
            if not _is_found(bench, {"what": script.name}):
                try:
                    yield from _runs_of(bench, script, environ)
                except MeasureError as error:  # the trainer's own seeds are to be measured, whatever is wrong with it
                    wrong.append(f"{script.name}: {error}")
    if wrong:
        raise MeasureError("\n".join(wrong))


def _runs_of(bench: Workbench, script: Path, environ: Mapping[str, str]) -> Iterator[Row]:
    text = bench.output_of(["ddpjob_measure.foreign", str(script)], environ)
    for line in text.splitlines():
        if line.startswith(foreign.PREFIX):
            _, accuracy, augmented, seconds = map(float, line.removeprefix(foreign.PREFIX).split())
            yield {"what": script.name, "accuracy %": augmented, "plain %": accuracy, "training s": seconds}


def _is_found(bench: Workbench, row: Row) -> bool:
    return any(found["what"] == row["what"] for found in bench.found)


def _check_time(bench: Workbench) -> None:
    """Whether another process of this step is likely to end in time.

    Raises:
        Skipped: it is not.
    """
    if bench.seconds_left < LEAST_SECONDS:
        raise Skipped(f"{bench.seconds_left:.0f} s of its time are left; --continue goes on from here")


def resnet18(bench: Workbench) -> Iterator[Row]:
    """ResNet-18 on CIFAR-10: this trainer, the plain DDP script and torchvision's loop; compiled and not, with CUDA graphs."""
    batch = 16 if bench.quick else 512
    environ = bench.images(320 if bench.quick else 40 * batch)
    yield from _speeds(
        bench, "resnet18-cifar10", batch=batch, size=images.SIZE, steps=2 if bench.quick else 25, environ=environ
    )


def resnet50(bench: Workbench) -> Iterator[Row]:
    """ResNet-50 at 224 pixels on random images, in the same ways; with the share of the chip's bf16 peak."""
    operations = operations_per_image()
    name = torch.cuda.get_device_name() if bench.device == "cuda" else ""
    peak = BF16_PEAKS.get(name)
    for row in _speeds(
        bench, images.SYNTHETIC, batch=2 if bench.quick else 256, size=224, steps=1 if bench.quick else 20, environ={}
    ):
        if "images/s" in row:
            row["GFLOP an image"] = operations / 1e9
            if peak:
                row["share of peak %"] = 100 * row["images/s"].median * operations / peak
        yield row


def _speeds(
    bench: Workbench, recipe: str, *, batch: int, size: int, steps: int, environ: Mapping[str, str]
) -> Iterator[Row]:
    """A row for each way of training, and the kernels of the first one; one that fails keeps no other from being measured."""
    ways = dict(WAYS)
    if bench.foreign is not None and (bench.foreign / "train.py").exists():
        ways["torchvision's loop"] = ("ddpjob_measure.foreign:reference_loop", {}, {}, {})
    if bench.quick:
        ways = {name: ways[name] for name in ways if name in QUICK_WAYS}
    wrong: list[str] = []
    yield from bench.found
    for what, (program, keys, options, variables) in ways.items():
        if _is_found(bench, {"what": what}):
            continue
        _check_time(bench)
        task = Task(
            program=program,
            config={"recipe": recipe, "globalBatchSize": batch, **keys},
            warmup_steps=1 if bench.quick else 10,
            steps=steps,
            windows=1,
            options={"num_workers": NUM_WORKERS, "folder": str(bench.foreign), "size": size, **options},
        )
        try:
            figures, text = bench.figures(task, {**environ, **variables})
        except MeasureError as error:
            wrong.append(f"{what}: {error}")
            continue
        without = NO_GRAPHS.search(text) if variables else None
        yield {"what": what, **figures.row(), **({"CUDA graphs": without[0]} if without else {})}
        for kernel in figures.extra.get("kernels", []):
            yield {"what": f"kernel of {what}", **kernel}
    if wrong:
        raise MeasureError("\n".join(wrong))


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
    Step(name="tests", least_seconds=15, limit_seconds=60, run=trainer_tests),
    Step(name="exact", least_seconds=30, limit_seconds=90, run=exact_twice),
    Step(name="resume", least_seconds=30, limit_seconds=100, run=verify_resume),
    Step(name="ranks", least_seconds=20, limit_seconds=90, run=ranks),
    Step(name="in-place", least_seconds=30, limit_seconds=100, run=restart_in_place),
    Step(name="speedrun", least_seconds=30, limit_seconds=80, run=speedrun),
    Step(name="resnet18", least_seconds=30, limit_seconds=100, run=resnet18),
    Step(name="resnet50", least_seconds=30, limit_seconds=100, run=resnet50),
    Step(name="overhead", least_seconds=25, limit_seconds=60, run=overhead),
    Step(name="recipes", least_seconds=60, limit_seconds=200, run=recipes_in_bfloat16),
)
