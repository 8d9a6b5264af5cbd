"""The user's own script of the README is the same text everywhere.

`processes/local/test_local_examples.py` runs it on four ranks under torchrun.
"""

import re

import pytest
import yaml

from support import REPOSITORY

SCRIPT = REPOSITORY / "trainer/examples/minimal_ddp.py"
SESSION = REPOSITORY / "trainer/examples/minimal_session.py"


@pytest.mark.parametrize(("manifest", "script"), [("own-script", SCRIPT), ("own-session", SESSION)])
def test_the_example_manifests_contain_the_scripts(manifest, script):
    config_map = next(yaml.safe_load_all((REPOSITORY / f"manifests/examples/{manifest}.yaml").read_text()))
    assert config_map["data"]["train.py"] == script.read_text()


def test_the_readme_explains_each_of_its_lines_in_order():
    section = (REPOSITORY / "trainer/README.md").read_text().partition("## Your own script")[2].partition("\n## ")[0]
    explained = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    code = SCRIPT.read_text().partition('"""\n\n')[2]

    lines = [line.strip() for line in code.splitlines() if line.strip()]

    assert [line.replace(r"\|", "|") for line in explained] == lines


def test_the_script_with_a_session_differs_in_at_most_ten_lines():
    plain, changed = (
        {line.strip() for line in script.read_text().partition('"""\n\n')[2].splitlines()}
        for script in (SCRIPT, SESSION)
    )
    assert len(changed - plain) <= 10


def test_the_page_shows_both_scripts_next_to_each_other():
    page = (REPOSITORY / "docs/how-to/own-script.md").read_text().partition("## With a session")[2]
    shown = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown[:2] == [SCRIPT.read_text(), SESSION.read_text()]
