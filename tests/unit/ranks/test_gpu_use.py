"""A process that ranks are forked from refuses to fork once it uses a GPU, and names the module that began it.

The driver is a stand-in, a library of its name that CUDA loads and initialises as it does the real one. It opens a file that stands
for the GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_ranks.launch.supervisor import MODULES

DRIVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>

static int other(void) { return 0; }
int cuInit(unsigned flags) { return open(getenv("STAND_IN_GPU"), O_RDWR) < 0 ? 999 : 100; }  // CUDA_ERROR_NO_DEVICE
int cuDriverGetVersion(int *version) { *version = 99000; return 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, void *status) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (*function == NULL) *function = (void *)other;
    return 0;
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
"""
FORKS = """
import os, sys
from ddpjob_ranks.launch.template import Template, TemplateError
template = Template(sys.argv[1:], os.environ, lambda: None, "")
try:
    os.waitpid(template.fork(["-m", "this"], os.environ, []), 0)
except TemplateError:
    sys.exit(3)
"""
#: Modules by name. The first one has files of this folder taken for GPUs.
SOURCES = {
    "stand_in": "import os\nfrom ddpjob_ranks.launch import gpu_use\ngpu_use.DEVICES = (os.environ['STAND_IN_GPU'],)\n",
    "opens_gpu": "import os\nos.open(os.environ['STAND_IN_GPU'], os.O_RDWR)\nimport colorsys\n",
    "asks_cuda": "import torch\nassert not torch.cuda.is_available()\n",
    "its_user": "import json.tool\nimport opens_gpu\nimport this\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of modules, with a libcuda.so.1 and a GPU."""
    folder: Path = tmp_path_factory.mktemp("modules")
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "nvidia0").touch()
    (source_file := folder / "driver.c").write_text(DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source_file], check=True)
    return folder


def forked(folder: Path, *modules: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder), "STAND_IN_GPU": str(folder / "nvidia0")}
    environ["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    command = [sys.executable, "-c", FORKS, "stand_in", *modules]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)


def test_what_ranks_are_forked_from_does_not_initialise_the_driver(folder):
    done = forked(folder, *MODULES, "ddpjob_trainer.worker")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "by"),
    [("its_user", "opens_gpu (by its_user)"), ("asks_cuda", "asks_cuda")],
    ids=["within another module", "by what looks like a question"],
)
def test_a_module_that_uses_a_gpu_is_named_and_no_rank_is_forked(folder, module, by):
    done = forked(folder, module)
    assert done.returncode == 3
    expected = f"the import of {by} has opened {folder / 'nvidia0'}, before the first rank is forked"
    assert expected in done.stderr
