import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpjob_measure import carry, foreign, gpu, gpu_steps, outcome, record
from ddpjob_measure.__main__ import main
from ddpjob_measure.task import PARTS, Figures, MeasureError, Spread, Task
from ddpjob_measure.verify_resume import Run
from ddpjob_measure.workbench import Row, Skipped, Step, Workbench
from ddpjob_ranks.errors import ConfigError
from support.fakes import fake
from testbed import is_running, wait_for


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Runs the command on these steps; gives its exit code and the record's steps."""

    def run(
        *steps: Step, seconds: int = 1000, quick: bool = False, continues: bool = False
    ) -> tuple[int, list[dict[str, object]]]:
        monkeypatch.setattr(gpu_steps, "STEPS", steps)
        for name in ("CUDA_VISIBLE_DEVICES", "DDPJOB_TEST_DATA"):
            monkeypatch.setenv(name, "")
        options = {
            "device": "cpu",
            "quick": quick,
            "fault": False,
            "seconds": seconds,
            "only": None,
            "continues": continues,
            "foreign": None,
        }
        given = argparse.Namespace(**options, results=tmp_path, name="gpu", default_name="")
        code = gpu.run(given)
        return code, json.loads((tmp_path / "gpu.json").read_text())["rows"]

    return run


def step(name: str, run, *, least_seconds: int = 1) -> Step:
    return Step(name=name, least_seconds=least_seconds, limit_seconds=60, run=run)


def good(_: Workbench) -> Iterator[Row]:
    yield {"what": "good", "value": 1.0}


def test_without_a_gpu_it_says_so_and_names_the_option_that_needs_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["gpu", "--results", str(tmp_path)]) == 1
    assert "sees no GPU; --device cpu runs the same flow without one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_step_leaves_its_rows_and_its_error_and_the_next_one_runs(found, tmp_path, capsys):
    def bad(_: Workbench) -> Iterator[Row]:
        yield {"what": "before"}
        raise MeasureError("the device is on fire")

    code, (first, second) = found(step("bad", bad), step("good", good))

    assert code == 1
    assert (first["status"], first["rows"]) == ("failed", [{"what": "before"}])
    assert "the device is on fire" in first["note"]
    assert "the device is on fire" in (tmp_path / "gpu.md").read_text()
    assert "Traceback" in capsys.readouterr().err
    assert (second["status"], second["rows"]) == ("ok", [{"what": "good", "value": 1.0}])


def test_facts_that_cannot_be_found_out_keep_no_step_from_running(found, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"  # of a broken driver: it does not end
    program.write_text("#!/bin/sh\nexec sleep 1000")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpu, "QUERY_SECONDS", 0.1)
    monkeypatch.setattr(record.facts, "__defaults__", (("torch", "no-such-package"),))
    code, _ = found(step("good", good))
    assert code == 0
    facts = json.loads((tmp_path / "gpu.json").read_text())
    assert "timed out" in str(facts), facts


def test_a_step_that_does_not_fit_any_more_is_skipped_and_so_is_one_that_cannot_run(found):
    def cannot(_: Workbench) -> Iterator[Row]:
        raise Skipped("no images")
        yield {}

    code, (first, second, third) = found(
        step("long", good, least_seconds=5000), step("cannot", cannot), step("good", good)
    )

    assert code == 0
    assert (first["status"], first["rows"]) == ("skipped", [])
    assert "it takes 5000 s or more" in first["note"]
    assert (second["status"], second["note"]) == ("skipped", "no images")
    assert third["status"] == "ok"


def test_a_run_that_is_cut_off_leaves_the_rows_that_were_there(found, tmp_path):
    def cut_off(_: Workbench) -> Iterator[Row]:
        yield {"what": "first"}
        record = json.loads((tmp_path / "gpu.json").read_text())
        assert [row["status"] for row in record["rows"]] == ["ok", "running"]
        assert record["rows"][1]["rows"] == [{"what": "first"}]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found(step("good", good), step("cut off", cut_off))


def test_a_run_continues_with_the_steps_that_have_not_ended_well(found):
    taken: list[str] = []

    def fails_once(_: Workbench) -> Iterator[Row]:
        taken.append("fails once")
        if len(taken) == 1:
            raise MeasureError("no memory")
        yield {"what": "second time"}

    found(step("good", good), step("fails once", fails_once))

    def never(_: Workbench) -> Iterator[Row]:
        raise AssertionError("it has ended well before")

    code, rows = found(step("good", never), step("fails once", fails_once), continues=True)
    assert code == 0
    assert [(row["name"], row["status"], row["rows"][0]["what"]) for row in rows] == [
        ("good", "ok", "good"),
        ("fails once", "ok", "second time"),
    ]


def test_speeds_are_measured_in_the_order_of_their_value_and_a_run_that_continues_goes_on_after_the_last_one(
    found, monkeypatch
):
    measured: list[str] = []

    def figures(bench: Workbench, task: Task, environ: dict[str, str]) -> tuple[Figures, str]:
        measured.append(
            f"{task.program} {task.config.get('profile', '')} {environ.get('TORCHINDUCTOR_CUDAGRAPHS', '')}"
        )
        if len(measured) == 2:
            bench.step_deadline = 0.0  # the time is over
        one = Spread.of([2.0])
        known: dict[str, Any] = {
            "images_per_second": one,
            "step_seconds": one,
            "cpu_seconds": one,
            "peak_memory_bytes": 1,
        }
        parts = dict.fromkeys(PARTS, one)
        return Figures(
            world_size=1, device="cpu", global_batch_size=4, part_seconds=parts, **known
        ), "skipping cudagraphs"

    monkeypatch.setattr(Workbench, "figures", figures)
    monkeypatch.setattr(Workbench, "images", lambda *_: {})
    speed = step("speed", gpu_steps.resnet18)
    (cut_off,) = found(speed)[1]
    assert (cut_off["status"], len(cut_off["rows"])) == ("skipped", 2)
    (whole,) = found(speed, continues=True)[1]
    assert [row["what"] for row in whole["rows"]] == list(gpu_steps.WAYS)
    assert (whole["status"], len(measured)) == ("ok", len(gpu_steps.WAYS))
    assert whole["rows"][4]["CUDA graphs"] == "skipping cudagraphs"
    assert whole["rows"][0]["images/s"] == whole["rows"][6]["images/s"]


def test_a_run_that_continues_keeps_what_it_does_not_take(found):
    def cut_off(_: Workbench) -> Iterator[Row]:
        yield {"what": "first"}
        raise KeyboardInterrupt

    steps = step("first", good), step("second", cut_off), step("third", good)
    found(*steps[::2])
    with pytest.raises(KeyboardInterrupt):
        found(*steps, continues=True)
    _, rows = found(*steps[:2], step("third", cut_off), seconds=0, continues=True)
    assert [(row["name"], row["status"]) for row in rows] == [("first", "ok"), ("second", "skipped"), ("third", "ok")]


def test_the_table_of_airbench_is_read_without_its_first_run_which_compiles():
    table = """
|  run     |  epoch  |  train_acc  |  val_acc  |  tta_val_acc  |  time_seconds  |
|  warmup  |      1  |     0.1005  |   0.1000  |               |        9.0000  |
|          |   eval  |     0.1005  |   0.1000  |       0.1000  |        9.9000  |
|       0  |      8  |     0.9500  |   0.9340  |               |        2.4000  |
|          |   eval  |     0.9500  |   0.9340  |       0.9402  |        2.6000  |
"""
    assert [list(row.values()) for row in foreign.runs(table.splitlines())] == [pytest.approx([93.4, 94.02, 2.6])]


REFERENCE = """
def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, model_ema=None, scaler=None):
    for images, labels in data_loader:
        loss = criterion(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
"""


def test_a_reference_loop_is_measured_on_the_network_of_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(REFERENCE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = {"folder": str(tmp_path), "size": 32}
    task = Task(program="any", config={"recipe": "resnet18-cifar10", "globalBatchSize": 4}, options=options)
    measured = foreign.reference_loop(task, None, fake(device=torch.device("cpu")))
    before = [parameter.clone() for parameter in measured.replica.parameters()]
    measured.take_step(0, lambda: None)
    assert any(not torch.equal(was, now) for was, now in zip(before, measured.replica.parameters(), strict=True))


def test_a_step_that_had_no_time_to_find_anything_is_not_ok(found):
    code, (only,) = found(step("empty", lambda _: iter(())))
    assert (code, only["status"]) == (1, "failed")
    assert "has found nothing" in str(only["note"])


def test_a_run_of_other_size_is_not_continued(found):
    found(step("good", good), quick=True)
    with pytest.raises(MeasureError, match="quick True, and here it is False; give another --name"):
        found(step("good", good), continues=True)


def bench(tmp_path: Path, seconds: float) -> Workbench:
    found = Workbench(device="cpu", quick=True, deadline=time.monotonic() + seconds, outputs=tmp_path / "outputs")
    found.begin(step("any", good))
    return found


def test_the_output_of_a_process_that_fails_is_in_the_error_and_in_a_file(tmp_path):
    with bench(tmp_path, 60) as workbench, pytest.raises(MeasureError, match="No module named no_such_module"):
        workbench.output_of(["no_such_module", "--fast"])
    first, *_, last = (tmp_path / "outputs" / "01-no_such_module.txt").read_text().splitlines()
    assert (first, last) == ("$ python -m no_such_module --fast", "exit code 1")


CUT_OFF = """
import sys, time
from pathlib import Path
from ddpjob_measure.workbench import Workbench

bench = Workbench(device="cpu", quick=True, deadline=time.monotonic() + 600, outputs=Path(sys.argv[1]))
bench.step_deadline = bench.deadline
with bench:
    bench.output_of(["hangs"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_cut_off_ends_its_process_and_leaves_what_that_had_printed(tmp_path, number):
    (tmp_path / "hangs.py").write_text("import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(3600)\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{':'.join(filter(None, sys.path))}", "TMPDIR": str(tmp_path)}
    printed = tmp_path / "outputs" / "01-hangs.txt"
    with subprocess.Popen([sys.executable, "-c", CUT_OFF, str(printed.parent)], env=environ) as process:
        wait_for("the process to print its pid", lambda: printed.exists() and "pid" in printed.read_text(), seconds=60)
        process.send_signal(number)
    hanging = int(printed.read_text().split()[-1])
    wait_for("the process to end", lambda: not is_running(hanging), seconds=60)


def test_a_process_that_does_not_end_is_killed(tmp_path, monkeypatch):
    (tmp_path / "hangs.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(3600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with bench(tmp_path, 3) as workbench, pytest.raises(MeasureError, match="did not end within"):
        workbench.output_of(["hangs"])


def test_a_first_loss_far_from_that_in_float32_is_wrong():
    def losses(first: str) -> Run:
        return Run(name="", losses={1: first, 2: "1.0"})

    row, problem = gpu_steps._against(
        losses("2.0"), losses("2.02"), "profile fast: bfloat16\nmodel compiled for 2 shapes"
    )
    assert (row["profile"], row["compile"], problem) == ("fast: bfloat16", "model compiled for 2 shapes", "")
    assert "off that of eager float32" in gpu_steps._against(losses("2.0"), losses("2.5"), "")[1]
    assert "off that of eager float32" in gpu_steps._against(losses("2.0"), losses("nan"), "")[1]
    assert "torch.compile failed" in gpu_steps._against(losses("2.0"), losses("2.0"), "torch.compile failed, so")[1]


def test_each_recipe_has_its_rows_when_it_is_done_although_another_one_fails(tmp_path, monkeypatch):
    losses = {"eager float32": "2.0", "fast, eager": "2.1"}

    def few_steps(_: Workbench, recipe: str, keys: dict[str, str], __: object):
        if (recipe, keys["profile"]) == ("digits", "exact"):
            raise MeasureError("the device is on fire")
        loss = losses["eager float32" if keys["profile"] == "exact" else "fast, eager"]
        return Run(name=recipe, losses={1: loss}), fake(peak_memory_bytes=2**30), ""

    monkeypatch.setattr(gpu_steps, "_few_steps", few_steps)
    monkeypatch.setattr(Workbench, "images", lambda *_: {})
    rows: list[Any] = []
    with bench(tmp_path, 60) as workbench, pytest.raises(MeasureError) as wrong:
        rows.extend(gpu_steps.recipes_in_bfloat16(workbench))
    found = {(row["recipe"], row["kind"]): row.get("difference at first") for row in rows}
    assert found == {
        ("digits", "fast, eager"): None,
        **{(name, "eager float32"): 0.0 for name in ("speedrun-cifar10", gpu_steps.MAP_STYLE)},
        **{(name, "fast, eager"): pytest.approx(0.05) for name in ("speedrun-cifar10", gpu_steps.MAP_STYLE)},
    }
    assert "digits, eager float32: the device is on fire" in str(wrong.value)
    assert "speedrun-cifar10, fast, eager: the first loss is 5.0% off" in str(wrong.value)


def test_the_other_recipes_are_tried_if_one_cannot_be_found(tmp_path, monkeypatch):
    def images_for(_: Workbench, recipe: str):
        if recipe == gpu_steps.MAP_STYLE:
            raise ConfigError("there is no module examples.own_recipe")
        return {}

    monkeypatch.setattr(gpu_steps, "_images_for", images_for)
    monkeypatch.setattr(gpu_steps, "_tried", lambda _, recipe, *__: ([{"recipe": recipe}], []))
    rows: list[Any] = []
    with bench(tmp_path, 60) as workbench, pytest.raises(MeasureError, match=r"own_recipe:.* ConfigError: there is no"):
        rows.extend(gpu_steps.recipes_in_bfloat16(workbench))
    assert sorted(row["recipe"] for row in rows) == ["digits", "speedrun-cifar10"]


@pytest.mark.parametrize(("free_again", "error"), [(71.0, None), (32.0, "took 60% of it, 32.0 GiB are free again")])
def test_a_restart_in_place_finds_the_memory_of_the_rank_that_was_killed(tmp_path, monkeypatch, free_again, error):
    text = (
        "killed after step 3 at 1.0, 30.0 GiB free, leaving 4000000\nresumed from step 3 in memory: no step is lost\n"
    )
    text += f"step 4 after the restart at 2.5, {free_again} GiB free\n"
    monkeypatch.setattr(Workbench, "training", lambda *_, **__: (Run(name=""), text))
    monkeypatch.setattr(Workbench, "images", lambda *_: {})
    monkeypatch.setattr(gpu_steps, "_seconds_of_the_last_start", lambda _: {})
    rows: list[Row] = []
    with bench(tmp_path, 60) as workbench, pytest.raises(MeasureError, match=error) if error else nullcontext():
        rows.extend(gpu_steps.restart_in_place(workbench))
    assert [(row["seconds to the first step"], row["GiB free again"]) for row in rows] == [(1.5, free_again)]


def test_code_of_others_that_fails_keeps_no_seed_from_being_measured(tmp_path, monkeypatch):
    def output_of(_: Workbench, module: list[str], __: object) -> str:
        raise MeasureError(f"{module[-1]} failed")

    (tmp_path / "airbench94.py").touch()
    monkeypatch.setattr(Workbench, "training", lambda *_, **__: (Run(name=""), ""))
    monkeypatch.setattr(Workbench, "output_of", output_of)
    monkeypatch.setattr(outcome, "outcome_of", lambda _, seed: fake(row=lambda *_: {"seed": seed}))
    rows: list[Row] = []
    with bench(tmp_path, 60) as workbench:
        workbench.foreign = tmp_path
        with pytest.raises(MeasureError, match=r"airbench94\.py: .*airbench94\.py failed"):
            rows.extend(gpu_steps.speedrun(workbench))
    assert [row["what"] for row in rows] == ["digits, seed 0, compile auto", "digits, seed 0, compile never"]


SAID = """
ProcessGroupNCCL environments: NCCL version: 2.30.7, TORCH_NCCL_ASYNC_ERROR_HANDLING: 2, TORCH_NCCL_ENABLE_TIMING: 1, TORCH
TORCH_NCCL_ENABLE_MONITORING (Whether to kill program when no watchdog heartbeat detected): 0, TORCH_NCCL_DUMP_ON_TIMEOUT: 0
"""


def test_torch_says_whether_it_runs_nccl_as_it_was_told():
    assert gpu_steps.settings_in_effect(SAID).startswith("torch says 4 as it was told, and nothing of TORCH_DIST_USE")
    with pytest.raises(MeasureError, match="torch runs NCCL with TORCH_NCCL_ENABLE_TIMING=0; it was told"):
        gpu_steps.settings_in_effect(SAID.replace("TIMING: 1", "TIMING: 0"))


def test_operations_of_resnet50_are_three_times_those_of_its_forward_pass_but_for_the_first_layer():
    forward = 2 * 4.089e9  # two for each of the multiply-adds, torchvision's 4.09 G
    first = 2 * 64 * 3 * 49 * 112 * 112  # needs no gradient of its input
    assert gpu_steps.operations_per_image() == pytest.approx(3 * forward - first, rel=0.001)


def test_what_is_carried_is_the_lock_without_what_the_machine_has():
    lock = "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:00\nnvidia-cublas==13 \\\npydantic==2.14.3 \\\npyyaml==6.0.3 \\\ntorch==2.15.0 \\\n"
    assert carry.groups(lock, "2.11") == {
        "torchvision": ["torchvision==0.26.0"],
        "pydantic": ["pydantic==2.14.3"],
        "yaml": ["pyyaml==6.0.3"],
    }
    assert {"pydantic", "yaml"} < carry.groups(carry.LOCK.read_text(), "2.11").keys()


def test_only_what_is_missing_is_taken_from_the_carried_folder(tmp_path, monkeypatch):
    for name in ("json", "no_such_package"):
        (tmp_path / "packages" / name).mkdir(parents=True)
    monkeypatch.setenv(carry.VARIABLE, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "given")
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert carry.use() == ["no_such_package"]
    assert sys.path[0] == str(tmp_path / "packages" / "no_such_package")
