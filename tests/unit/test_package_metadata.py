"""The metadata of the Python package names the repository that a release is built in, and none where there is no address."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "trainer/ddpjob_recipes.dist-info/entry_points.txt")
BUILD = "from setuptools.build_meta import prepare_metadata_for_build_wheel as build; print(build('metadata'))"


@pytest.mark.parametrize(
    ("address", "source"), [("https://example.com/a/ddpjob", ["https://example.com/a/ddpjob"]), ("", [])]
)
def test_a_release_names_its_repository(tmp_path: Path, address: str, source: list[str]) -> None:
    for part in PARTS:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / part, tmp_path / part)
    for folder in ("operator", "metadata"):
        (tmp_path / folder).mkdir()
    environ = {**os.environ, "DDPJOB_REPOSITORY_URL": address}

    subprocess.run([sys.executable, "-c", BUILD], cwd=tmp_path, env=environ, capture_output=True, check=True)

    (metadata,) = tmp_path.glob("metadata/*/METADATA")
    prefix = "Project-URL: Source, "
    found = [line.removeprefix(prefix) for line in metadata.read_text().splitlines() if line.startswith(prefix)]
    assert found == source
