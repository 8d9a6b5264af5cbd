"""A copy of the checkout, in which files are changed and tests run. The checkout itself is only read."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import coverage

REPOSITORY = Path(__file__).parents[2]
IMPORT_ROOTS = ("operator", "trainer", "tests", "hack")
PLUGIN = ("-p", "mutants.plugin")
#: For one test. Unit tests take seconds; a mutant may wait forever.
TEST_SECONDS = 60
#: For all tests of one mutant, should pytest itself hang.
MUTANT_SECONDS = 600


class CopiedTree:
    """A copy of all files of the checkout that git does not ignore."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split(
            "\0"
        ):
            source, target = REPOSITORY / name, folder / name
            if source.is_file() and not source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        (folder / "build").mkdir()

    def files(self, package: str) -> list[str]:
        """The modules of a package, or of a part of it: paths in the repository."""
        return sorted(str(path.relative_to(self._folder)) for path in (self._folder / package).rglob("*.py"))

    def read(self, file: str) -> str:
        """The text of a file."""
        return (self._folder / file).read_text(encoding="utf-8") if (self._folder / file).exists() else ""

    def write(self, file: str, text: str) -> None:
        """Change a file."""
        (self._folder / file).write_text(text, encoding="utf-8")

    def measure(self, packages: Collection[str], tests: Collection[str]) -> dict[str, Mapping[int, Collection[str]]]:
        """The tests that run each line of these packages: by file and line number.

        Raises:
            RuntimeError: A test fails although nothing is changed.
        """
        data = self._folder / "build/mutants.coverage"
        source = ",".join(str(self._folder / package) for package in packages)
        command = ["coverage", "run", f"--data-file={data}", f"--source={source}", "-m", "pytest", *PLUGIN]
        exit_code, output = self._run([*command, "--quiet", *tests], seconds=6 * MUTANT_SECONDS)
        if exit_code != 0:
            raise RuntimeError(f"The tests fail although nothing is changed:\n{output}")
        lines = coverage.CoverageData(str(data))
        lines.read()
        return {
            str(Path(file).relative_to(self._folder)): {
                number: tests
                for number, contexts in lines.contexts_by_lineno(file).items()
                if (tests := set(contexts) - {""})
            }
            for file in lines.measured_files()
        }

    def outcome_of(self, tests: Collection[str]) -> str:
        """Run these tests until one fails: `survived` if none does, else `killed` or `timed out`."""
        options = [
            *PLUGIN,
            "--quiet",
            "--exitfirst",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            f"--timeout={TEST_SECONDS}",
        ]
        exit_code, output = self._run(["pytest", *options, *sorted(tests)], seconds=MUTANT_SECONDS)
        if exit_code is None or "Failed: Timeout" in output:
            return "timed out"
        return "killed" if exit_code else "survived"

    def _run(self, module: Sequence[str], *, seconds: float) -> tuple[int | None, str]:
        """Run a module of Python. Returns its exit code, or None if it took longer, and its output."""
        roots = os.pathsep.join(str(self._folder / root) for root in IMPORT_ROOTS)
        output = self._folder / "build/output"
        with output.open("wb") as file:  # a pipe would stay open as long as processes that a mutant leaves behind
            process = subprocess.Popen(
                [sys.executable, "-m", *module],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": f"{roots}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            exit_code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return exit_code, output.read_text(encoding="utf-8", errors="replace")
