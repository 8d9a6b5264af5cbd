"""`python -m ddpjob_measure.carry`: prepare the folder that a GPU machine without network needs next to this repository.

It gets what the trainer imports beyond torch, triton, numpy, pillow, scikit-learn and pytest, unpacked for that machine's
Python, in the versions of the lock, and CIFAR-10 if DDPJOB_TEST_DATA has it. Standard library and pip only.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ddpjob_measure import carried

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
    folder = carried.folder()
    shutil.rmtree(folder, ignore_errors=True)
    for module, requirements in groups(LOCK.read_text(encoding="utf-8"), given.torch).items():
        platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
        options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--implementation", "cp", *platforms]
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
            *options,
        ]
        target = folder / carried.PACKAGES / module
        subprocess.run([*command, "--python-version", given.python, "--target", target, *requirements], check=True)
        print(f"{module}: {' '.join(requirements)}")
    archive = Path(os.environ.get(TEST_DATA, ""), ARCHIVE)
    if archive.is_file():
        shutil.copy(archive, folder / ARCHIVE)
    else:
        print(
            f"without {ARCHIVE}: name the folder that has it in {TEST_DATA}, else the steps that learn from it are skipped"
        )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 2**20:.0f} MiB for Python {given.python} and torch {given.torch}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
