"""The program that runs the commands of documents, and that each command block of the documents says where it runs."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from support import REPOSITORY, documents


def document(folder: Path, *blocks: str) -> Path:
    file = folder / "README.md"
    file.write_text("# Title\n\n" + "\n".join(blocks))
    return file


def block(mark: str, commands: str, language: str = "sh") -> str:
    return f"{mark}\n```{language}\n{commands}\n```\n"


#: Markdown links to files of the repository, and tests named as `unit/core/test_plan.py::test_name`.
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
TEST = re.compile(r"`((?:\w+/)+test_\w+\.py)::(\w+)`")


def files_of_the_repository() -> list[Path]:
    root = REPOSITORY
    return [file for file in root.rglob("*.md") if not file.relative_to(root).parts[0].startswith(".")]


def test_links_and_names_of_tests_lead_somewhere() -> None:
    broken = []
    for file in files_of_the_repository():
        text = file.read_text(encoding="utf-8")
        broken += [f"{file}: {link}" for link in LINK.findall(text) if not (file.parent / link).exists()]
        for path, name in TEST.findall(text):
            module = REPOSITORY / "tests" / path
            if not module.exists() or f"def {name}(" not in module.read_text(encoding="utf-8"):
                broken.append(f"{file}: {path}::{name}")

    assert broken == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs")
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)

    site = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert site.returncode == 0, site.stdout + site.stderr
    assert (tmp_path / "build/site/index.html").exists()


def test_each_block_of_the_repository_is_marked() -> None:
    files = files_of_the_repository()

    assert REPOSITORY / "README.md" in files
    for file in files:
        documents.blocks(file)


def test_blocks_of_an_environment_run_in_one_shell_in_the_checkout(tmp_path: Path) -> None:
    file = document(
        tmp_path,
        block("<!-- run: shell -->", "NAME=World"),
        block("<!-- run: skip: it never ends -->", "sleep infinity"),
        block("<!-- run: cluster -->", "exit 1"),
        block("<!-- run: shell -->", "echo Hello $NAME $FROM\nls pyproject.toml"),
        block("<!-- run: shell -->", "$ echo typed\nexit 1", language="console"),
    )

    lines = documents.run(file, "shell", {"FROM": "here"}).splitlines()

    assert [line for line in lines if not line.startswith("+")] == ["Hello World here", "pyproject.toml", "typed"]


@pytest.mark.parametrize("commands", ["false\ntrue", "false | true", "echo $UNSET"])
def test_a_command_that_fails_is_an_error_that_names_its_block(tmp_path: Path, commands: str) -> None:
    file = document(tmp_path, block("<!-- run: shell -->", "true"), block("<!-- run: shell -->", commands))

    with pytest.raises(documents.DocumentError, match=r"README\.md:10 failed"):
        documents.run(file, "shell")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (block("", "true"), "no mark"),
        (block("<!-- run: elsewhere -->", "true"), "no mark"),
        (block("<!-- run: skip: -->", "true"), "no mark"),
        (block("", "make demo", language=""), "has no language"),
    ],
)
def test_a_block_without_a_mark_or_a_language_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(documents.DocumentError, match=rf"README\.md:.*{message}"):
        documents.blocks(document(tmp_path, text))


def test_the_picture_of_the_readme_is_small_and_runs_no_script() -> None:
    text = (REPOSITORY / "docs/images/recording.svg").read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert "<script" not in text
    assert ET.fromstring(text).tag.endswith("svg")


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_contributing_is_short() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1200
    assert [line for line in text.splitlines() if len(line) > 120] == []


def test_each_decision_is_on_the_page_that_lists_them() -> None:
    folder = REPOSITORY / "docs/decisions"
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "index.md").read_text(encoding="utf-8"))
    assert sorted([*listed, "index.md"]) == sorted(file.name for file in folder.glob("*.md"))
