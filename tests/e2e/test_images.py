"""The images without a cluster: their content, that any user can run them, and what a change of code rebuilds."""

import re
import shutil
from pathlib import Path

import pytest

from support import REPOSITORY
from support.images import SOURCES, build, recipe
from testbed import images
from testbed.commands import CommandError

#: In no passwd file, and owner of nothing.
UNKNOWN_USER = "12345:12345"

#: Our own modules, as the image's Python finds them: their files that have no bytecode, or that the user could change.
AT_FAULT = """
import importlib.util, os, pathlib, sys
files = [file for file in pathlib.Path("/opt/ddpjob").rglob("*.py")]
assert files and importlib.util.find_spec(sys.argv[1]).origin.startswith("/opt/ddpjob/")
uncompiled = [file for file in files if not os.path.exists(importlib.util.cache_from_source(file))]
print(*uncompiled, *[file for file in pathlib.Path("/opt").rglob("*") if not file.is_symlink() and os.access(file, os.W_OK)])
"""

#: What torch.compile needs on a GPU in addition to Python packages.
COMPILE_AS_TRITON_DOES = """
import subprocess, sysconfig
source = "#include <Python.h>\\nint main(void) { return Py_REFCNT(Py_None) == 0; }"
include = "-I" + sysconfig.get_path("include")
subprocess.run(["gcc", "-shared", "-fPIC", include, "-x", "c", "-", "-o", "/tmp/stub.so"], input=source.encode(), check=True)
print("compiled")
"""


@pytest.fixture(scope="module", autouse=True)
def built() -> dict[str, images.Image]:
    return {target: build(target) for target in SOURCES}


@pytest.mark.parametrize(
    ("target", "command", "expected"),
    [
        ("operator", ["python", "-m", "ddpjob_operator", "--help"], "--trainer-image"),
        ("trainer", ["python", "-m", "ddpjob_trainer", "--help"], "--config-json"),
        ("trainer", ["torchrun", "--help"], "--nproc-per-node"),
        ("trainer", ["python", "-c", "from importlib import util; print(util.find_spec('ddpjob_measure'))"], "None"),
        ("trainer", ["python", "-c", "import torch, torchvision, sklearn; print(torch.ones(2).sum().item())"], "2.0"),
        ("trainer", ["python", "-c", COMPILE_AS_TRITON_DOES], "compiled"),
        ("trainer-cpu", ["torchrun", "--help"], "--nproc-per-node"),
        (
            "trainer-cpu",
            ["python", "-c", "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"],
            "False 0",
        ),
        (
            "trainer-cpu",
            ["env", "HOME=/tmp", "NPROC_PER_NODE=2", "python", "-m", "ddpjob_trainer", "--set", "recipe=digits"],
            "accuracy 9",
        ),
    ],
)
def test_a_user_that_the_image_does_not_know_runs_it(target: str, command: list[str], expected: str) -> None:
    assert expected in images.run(target, *command, user=UNKNOWN_USER)


def test_the_page_s_dockerfile_makes_an_image_that_trains_its_recipe(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/how-to/own-model.md").read_text()
    (dockerfile,) = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)
    (tmp_path / "Dockerfile").write_text(dockerfile)
    shutil.copy(REPOSITORY / "trainer/examples/own_recipe.py", tmp_path)
    train = ["env", "HOME=/tmp", "python", "-m", "ddpjob_trainer", "--set", "recipe=own_recipe:digits_mlp"]
    assert "accuracy 9" in images.run("trainer-cpu", *train, user=UNKNOWN_USER, extended_by=tmp_path)


@pytest.mark.parametrize(("target", "package"), [("operator", "ddpjob_operator"), ("trainer", "ddpjob_trainer")])
def test_our_code_is_compiled_and_cannot_be_changed(target: str, package: str) -> None:
    assert images.run(target, "python", "-c", AT_FAULT, package, user=UNKNOWN_USER) == ""


def test_the_operator_image_is_slim(built: dict[str, images.Image]) -> None:
    with pytest.raises(CommandError, match="No module named 'torch'"):
        images.run("operator", "python", "-c", "import torch", user=UNKNOWN_USER)

    (base, base_bytes), *_ = built["trainer"].blobs.items()
    assert base in built["operator"].blobs, "both have the same base"
    assert sum(built["operator"].blobs.values()) - base_bytes < 250e6


def test_the_trainer_image_for_cpus_is_a_third_of_the_other_one(built: dict[str, images.Image]) -> None:
    cpu, gpu = (sum(built[target].blobs.values()) for target in ("trainer-cpu", "trainer"))

    assert cpu < gpu / 3


@pytest.fixture
def changed_code(tmp_path: Path) -> Path:
    """The project with one more line in a module that both images hold."""
    for name in ("operator", "trainer", "requirements", "charts"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    for name in ("Dockerfile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    with (tmp_path / "trainer/ddpjob_ranks/contract.py").open("a") as module:
        module.write(f"# {tmp_path}\n")
    return tmp_path


@pytest.mark.parametrize("target", SOURCES)
def test_a_change_of_code_keeps_the_layers_of_the_dependencies(
    built: dict[str, images.Image], target: str, changed_code: Path
) -> None:
    changed = images.build(recipe(target, changed_code))

    new = {digest: size_bytes for digest, size_bytes in changed.blobs.items() if digest not in built[target].blobs}
    assert 0 < sum(new.values()) < 5e6


def test_an_unchanged_tree_is_not_built_again(monkeypatch: pytest.MonkeyPatch, changed_code: Path) -> None:
    image = images.build(recipe("operator", changed_code))
    monkeypatch.setattr("testbed.commands.run", None)

    assert images.build(recipe("operator", changed_code)) == image
