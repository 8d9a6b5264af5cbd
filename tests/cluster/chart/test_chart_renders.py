"""The chart as Helm renders it, as golden files, for each file of values in `renders/`.

`default.txt` holds all objects of the default values, and `NAME.txt` what the values of `NAME.values.yaml` change of
them. A change of a rule or binding is a change of what an administrator grants, and belongs into the chart's README, too.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support import golden
from support.chart_render import CHART, Object, identity, render

RENDERS = Path(__file__).parent / "renders"
CASES = sorted(file.name.removesuffix(".values.yaml") for file in RENDERS.glob("*.values.yaml"))
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
#: Long texts that have tests of their own: the schema of the CRD, the program of `helm test`, the dashboard, the alerts.
LEFT_OUT = {"CustomResourceDefinition": "spec", "ConfigMap": "data", "PrometheusRule": "spec"}


def objects(case: str) -> dict[str, str]:
    """The text of each object that is rendered, by kind, namespace and name."""
    rendered = render(yaml.safe_load((RENDERS / f"{case}.values.yaml").read_text()))
    for item in rendered:
        item.pop(LEFT_OUT.get(item["kind"], ""), None)
    texts = {" ".join(filter(None, identity(item))): dump(item) for item in rendered}
    assert len(texts) == len(rendered), "two objects have one name"
    return dict(sorted(texts.items()))


def dump(item: Object) -> str:
    return yaml.safe_dump(item, sort_keys=False).replace(VERSION, "VERSION")


def changes(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """What differs, object by object."""
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"--- {name}\n"
        elif name not in before:
            yield f"+++ {name}\n{after[name]}"
        elif before[name] != after[name]:
            yield f"=== {name}\n"
            lines = difflib.unified_diff(before[name].splitlines(keepends=True), after[name].splitlines(keepends=True))
            yield from (line for line in lines if not line.startswith(("---", "+++", "@@")))


def rendered(case: str) -> str:
    return "".join(changes({} if case == "default" else objects("default"), objects(case)))


@pytest.mark.parametrize("case", CASES)
def test_the_chart_renders_as_recorded(case: str) -> None:
    golden.check(RENDERS / f"{case}.txt", rendered(case))
