"""`python -m ddpjob_measure.carry`: prepare the folder that a GPU machine without network needs next to this repository.

It gets what the trainer imports beyond torch, triton, numpy, pillow, scikit-learn and pytest, unpacked for that machine's
Python, in the versions of the lock, and CIFAR-10 if DDPJOB_TEST_DATA has it. Standard library and pip only.

The folder has a folder for each group of packages, named after the module that shows whether the group is installed. There,
importing this module makes importable what the machine lacks, so it comes before anything that imports pydantic.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

#: Overrides the place of the folder.
VARIABLE = "DDPJOB_CARRIED"
DEFAULT = Path(__file__).parents[2] / "build" / "gpu"
PACKAGES = "packages"
#: The machine has these, with all that they need, or does without them: object stores are not reached from there.
GIVEN = re.compile(
    r"(torch|torchvision|triton|numpy|pillow|scikit-learn|scipy|joblib|threadpoolctl|narwhals|cloudpickle|filelock|fsspec"
    r"|jinja2|markupsafe|mpmath|networkx|sympy|setuptools|cuda-.*|nvidia-.*|obstore)$"
)
#: Groups by the module that shows whether the machine has them. All else of the lock goes with pydantic.
GROUPS = {"pyyaml": "yaml"}
#: By the machine's torch; torchvision fits one version of torch only.
TORCHVISION = {"2.11": "0.26.0", "2.15": "0.29.2"}
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
ARCHIVE, TEST_DATA = "cifar10-jpeg.tar.xz", "DDPJOB_TEST_DATA"
LOCK = Path(__file__).parents[2] / "requirements" / "trainer.lock"


def folder() -> Path:
    """Where the carried folder is, whether it exists or not."""
    return Path(os.environ.get(VARIABLE) or DEFAULT).absolute()


def use() -> list[str]:
    """Make the missing groups importable, here and in child processes; returns their names."""
    groups = sorted(path for path in (folder() / PACKAGES).glob("*") if path.is_dir())
    missing = [group for group in groups if importlib.util.find_spec(group.name) is None]
    added = [str(group) for group in missing]
    if added:
        sys.path[:0] = added
        # The children have this program's own folders too, wherever they are started.
        own, given = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([*added, own, *filter(None, [given])])
        importlib.invalidate_caches()
    return [group.name for group in missing]


def groups(lock: str, torch: str) -> dict[str, list[str]]:
    """The requirements of each group, by the text of a lock and the machine's version of torch."""
    found: dict[str, list[str]] = {"torchvision": [f"torchvision=={TORCHVISION[torch]}"]}
    for name, version in re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock, re.MULTILINE):
        if not GIVEN.match(name):
            found.setdefault(GROUPS.get(name, "pydantic"), []).append(f"{name}=={version}")
    return found


def main() -> int:
    """Prepare the folder; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddpjob_measure.carry", description=__doc__)
    parser.add_argument("--python", default="3.12", help="version of the machine's Python (default: 3.12)")
    parser.add_argument("--torch", default="2.11", choices=TORCHVISION, help="version of its torch (default: 2.11)")
    given = parser.parse_args()
    target = folder()
    shutil.rmtree(target, ignore_errors=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
    ]
    pip += ["--no-deps", "--no-compile", "--only-binary=:all:", "--implementation", "cp"]
    pip += ["--python-version", given.python, *(part for platform in PLATFORMS for part in ("--platform", platform))]
    for module, requirements in groups(LOCK.read_text(encoding="utf-8"), given.torch).items():
        subprocess.run([*pip, "--target", target / PACKAGES / module, *requirements], check=True)
        print(f"{module}: {' '.join(requirements)}")
    archive = Path(os.environ.get(TEST_DATA, ""), ARCHIVE)
    if archive.is_file():
        shutil.copy(archive, target / ARCHIVE)
    else:
        print(
            f"without {ARCHIVE}: name the folder that has it in {TEST_DATA}, else the steps that learn from it are skipped"
        )
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {size / 2**20:.0f} MiB for Python {given.python} and torch {given.torch}")
    return 0


USED = use()

if __name__ == "__main__":
    sys.exit(main())
