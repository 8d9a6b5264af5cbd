"""Lets torch from the package index run where NVIDIA's libraries are not installed: `python without_cuda.py`.

The build of torch that the package index has for Linux is linked against 3 GB of CUDA libraries, and it does not load
without them. On a machine without a GPU these libraries only report that there is none. This program replaces all of them by
one small library that does the same: each of its functions returns the error 100, cudaErrorNoDevice. torch then finds no GPU;
what it computes on CPUs is what it computes in the image with CUDA, because it is the same build.

It needs gcc and readelf, changes the installed torch, and runs in the environment that has torch and lacks NVIDIA's packages.
"""

import importlib.util
import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

_LIBRARY = re.compile(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)\w*\.so\.\d+)\]")
_FUNCTION = re.compile(r"(?:__cuda|cu[A-Z]|cuda|cublas|cudnn|cufft|cupti|cusolver|cusparse|nccl|nvrtc|nvshmem)\w+")
#: Functions that return a text; all others return an error code.
_TEXT = re.compile(r".*(?:String|ErrorName)")


def main() -> None:
    """Write the library into torch's directory of libraries, with a link for each library that it replaces.

    Raises:
        CalledProcessError: gcc or readelf failed.
    """
    specification = importlib.util.find_spec("torch")
    assert specification is not None, "torch is installed"
    assert specification.origin is not None, "it has files"
    folder = Path(specification.origin).parent / "lib"
    libraries: set[str] = set()
    functions: defaultdict[str, set[str]] = defaultdict(set)
    for file in folder.glob("lib*.so"):
        libraries.update(_LIBRARY.findall(_readelf("--dynamic", file)))
        for function, version in _undefined(file):
            functions[version].add(function)
        _clear_gpu_code(file)
    stub = folder / "libddpjob-no-cuda.so"
    _compile(stub, functions)
    for library in sorted(libraries):
        link = folder / library
        if not link.exists():
            link.symlink_to(stub.name)
    print(f"{stub}: {sum(map(len, functions.values()))} functions in place of {', '.join(sorted(libraries))}")


def _readelf(table: str, file: Path) -> str:
    command = ["readelf", "--wide", table, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _undefined(file: Path) -> list[tuple[str, str]]:
    """The CUDA functions that a library calls but does not define, each with its version, empty for none."""
    rows = [line.split() for line in _readelf("--dyn-syms", file).splitlines()]
    symbols = [row[7].partition("@")[::2] for row in rows if len(row) > 7 and row[6] == "UND"]
    return [(name, version) for name, version in symbols if _FUNCTION.fullmatch(name)]


def _clear_gpu_code(file: Path) -> None:
    """Replace the machine code for GPUs by zeros, which take no space in the compressed layers of an image."""
    section = re.search(r"\.nv_fatbin +PROGBITS +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", _readelf("--sections", file))
    if section:
        offset, size_bytes = (int(number, base=16) for number in section.groups())
        with file.open("r+b") as content:
            content.seek(offset)
            content.write(bytes(size_bytes))


def _compile(stub: Path, functions: dict[str, set[str]]) -> None:
    """Compile the functions, by version: the dynamic linker refuses a library that lacks a version that is asked for."""
    code = "\n".join(map(_definition, sorted(set().union(*functions.values()))))
    versions = [
        f"{version} {{ {' '.join(f'{name};' for name in sorted(names))} }};"
        for version, names in sorted(functions.items())
        if version
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        script.write("\n".join(versions))
        script.flush()
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,--version-script={script.name}"]
        subprocess.run([*command, "-o", str(stub), "-x", "c", "-"], input=code, text=True, check=True)


def _definition(function: str) -> str:
    if _TEXT.fullmatch(function):
        return f'const char *{function}(void) {{ return "this image has no CUDA"; }}'
    return f"int {function}(void) {{ return 100; }}"


if __name__ == "__main__":
    main()
