import re
from pathlib import Path

import yaml

from support import REPOSITORY
from support.local_command import LocalCommand

EXAMPLES = REPOSITORY / "manifests/examples"


def test_a_recipe_in_a_config_map_trains(tmp_path: Path) -> None:
    with LocalCommand(EXAMPLES / "own-recipe.yaml", tmp_path) as command:
        outcome = command.outcome()
    assert outcome.exit_code == 0, outcome.output
    assert float(re.findall(r"after 184 steps: accuracy (\S+) %", outcome.output)[-1]) > 90


def test_the_example_and_the_page_contain_the_recipe() -> None:
    recipe = (EXAMPLES.parents[1] / "trainer/examples/own_recipe.py").read_text()
    assert len(recipe.splitlines()) <= 40
    example = (EXAMPLES / "own-recipe.yaml").read_text()
    assert next(yaml.safe_load_all(example))["data"]["own_recipe.py"] == recipe
    page = (EXAMPLES.parents[1] / "docs/how-to/own-model.md").read_text()
    assert f"```python\n{recipe}```" in page
    assert "```yaml\n" + example.partition("---\n")[2] + "```" in page
