"""Whether this process uses a GPU, by what the kernel shows of it: then a process that is forked from it could not."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

#: How the files of GPUs begin, which CUDA and NVML open when they are initialised, and ROCm. A library of the driver that is loaded
#: is no sign of use: libcublasLt of CUDA 13 loads libcuda.so.1 when torch is imported, and does not initialise it.
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def use_of_gpu() -> str | None:
    """What this process has done with a GPU, for a sentence; None if nothing."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself is closed
            if (target := str(descriptor.readlink())).startswith(DEVICES):
                return f"has opened {target}"
    return None


def import_all(modules: Iterable[str]) -> str | None:
    """Import modules, up to the first one that uses a GPU; returns a sentence about that, or None."""
    imported: list[str] = []
    for name in modules:
        import_module(name)
        imported.append(name)
        if (use := use_of_gpu()) is not None:
            by = _module_within(imported)
            return f"the import of {by or name}{f' (by {name})' if by not in (None, name) else ''} {use}"
    return None


def _module_within(modules: Sequence[str]) -> str | None:
    """The module that began the use, while another process imports the same ones; None if that does not show it."""
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import main; main()", *modules],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.rpartition("\n")[2].strip() or None


class _Finder:
    """Finds modules as `finder` does, and has a look before and after each runs, with the name of the one that ran until then."""

    running: ClassVar[list[str]] = []

    def __init__(self, finder: Any, look: Callable[[str], None]) -> None:
        self._finder, self._look = finder, look

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec: ModuleSpec | None = self._finder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_look(module: ModuleType) -> None:
                if self.running:
                    self._look(self.running[-1])
                self.running.append(name)
                run(module)
                self._look(self.running.pop())

            with suppress(AttributeError, TypeError):  # that of a builtin module
                spec.loader.exec_module = run_and_look  # type: ignore[method-assign]
        return spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def main() -> None:
    """Import the modules that the arguments name, and end with the name of the first one after which the GPU is in use as the last line of the output."""

    def look(name: str) -> None:
        if use_of_gpu() is not None:
            sys.stdout.write(f"\n{name}")
            sys.stdout.flush()
            os._exit(0)

    sys.meta_path[:] = [_Finder(finder, look) for finder in sys.meta_path]
    for name in sys.argv[1:]:
        import_module(name)
