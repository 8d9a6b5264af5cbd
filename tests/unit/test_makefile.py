"""Every test file is run by one of the targets that `.ci/run` runs."""

import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_every_test_file_is_run_by_a_target_of_ci() -> None:
    ci = (REPOSITORY / ".ci/run").read_text()
    targets = re.findall(r"^step (\S+)", ci, re.MULTILINE)
    dry_run = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *targets],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pytest_lines = [line for line in dry_run.replace("\\\n", " ").splitlines() if "/pytest " in line]
    run = [REPOSITORY / path for line in pytest_lines for path in re.findall(r"\btests/\S+", line)]
    files = [file for pattern in ("test_*.py", "*_test.py") for file in (REPOSITORY / "tests").rglob(pattern)]
    assert len(files) > 100
    assert [file for file in files if not {file, *file.parents} & set(run)] == []
