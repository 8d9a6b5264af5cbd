"""Golden files: the text that a test expects, in a file that a reviewer reads as a diff when a change alters it."""

import difflib
import os
from pathlib import Path

import pytest

#: `DDPJOB_TEST_GOLDEN=write pytest <files>` writes what the tests have got to the golden files.
VARIABLE = "DDPJOB_TEST_GOLDEN"


def check(file: Path, text: str) -> None:
    """Fail with a diff if the text differs from the golden file's; or write the file, if the variable asks for that."""
    text = text.rstrip("\n") + "\n"
    if os.environ.get(VARIABLE) == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    expected = file.read_text() if file.exists() else ""
    if text != expected:
        diff = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), f"{file.name} (expected)", f"{file.name} (now)", lineterm="", n=2
        )
        advice = f"If the change is intended, run the test with {VARIABLE}=write and commit the file."
        pytest.fail("\n".join([f"{file} differs.", advice, *diff]), pytrace=False)
