"""A process that ranks are forked from refuses to fork once it uses a GPU, and names the module that began it.

The driver is a stand-in, a library of its name that ends the process that initialises it, and so is the GPU, a file.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_ranks.launch.supervisor import MODULES

FORKS = """
import os, sys
from ddpjob_ranks.launch.template import Template, TemplateError
template = Template(sys.argv[1:], os.environ, lambda: None, "")
try:
    os.waitpid(template.fork(["-m", "this"], os.environ, []), 0)
except TemplateError:
    sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of modules, and of a libcuda.so.1."""
    (source := tmp_path / "driver.c").write_text("#include <stdlib.h>\nint cuInit(unsigned flags) { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    return tmp_path


def forked(folder: Path, *modules: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", FORKS, *modules]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)


def test_what_ranks_are_forked_from_does_not_initialise_the_driver(folder):
    done = forked(folder, *MODULES, "ddpjob_trainer.worker")
    assert done.returncode == 0, done.stderr


def test_a_module_that_uses_a_gpu_is_named_and_no_rank_is_forked(folder):
    (gpu := folder / "nvidia0").touch()
    stand_in = f"from ddpjob_ranks.launch import gpu_use\ngpu_use.DEVICE = {str(folder / 'nvidia')!r}\n"
    (folder / "stand_in.py").write_text(stand_in)
    (folder / "uses_gpu.py").write_text(f"import os\nos.open({str(gpu)!r}, os.O_RDWR)\nimport colorsys\n")
    (folder / "its_user.py").write_text("import json.tool\nimport uses_gpu\nimport this\n")
    done = forked(folder, "stand_in", "its_user")
    assert done.returncode == 3
    assert f"the import of uses_gpu (by its_user) has opened {gpu}, before the first rank is forked" in done.stderr
