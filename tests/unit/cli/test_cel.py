"""The rules of a DDPJob have the same results here as with cel-python, which implements the whole language."""

import functools
import random
from collections import defaultdict
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel

from ddpjob_cli import cel, rules
from ddpjob_operator.api.crd import submitted_schema

#: Values of the fields that rules refer to; None leaves the field out.
CHOICES: dict[str, tuple[Any, ...]] = {
    "trainer": (None, {}, {"perProcessBatchSize": 8, "checkpointEverySteps": 5, "profileSteps": [3, 5]}, {"profileSteps": [5, 3]}, {"profileSteps": [3]}),
    "command": (None, [""], ["python3", "x.py"], ["/usr/bin/python", "-m", "ddpjob.launch", "x.py", "$RANK $(RANK) $NODE_RANK ${PET_NODE_RANK}"], ["torchrun", "x.py"]),
    "nodes": (None, 2, 3),
    "minNodes": (None, 1, 2, 3),
    "gpusPerNode": (None, 1, 2),
    "gpuResource": (None, "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"),
    "processesPerNode": (None, 1, 2),
    "resources": (None, {}, {"limits": {"nvidia.com/gpu": 1}}, {"requests": {"cpu": 1, "nvidia.com/gpu": 1}}),
    "env": (None, [{"name": "RANK"}], [{"name": "A", "value": "$(RANK)", "valueFrom": {}}]),
    "checkpoint": (None, {"uri": "s3://b"}, {"everySteps": 5}, {"uri": "s3://b", "volume": {"emptyDir": {}}}),
    "scheduling": (None, {"queueName": "q"}, {"queueName": "q", "gang": "none"}),
    "restart": (None, {}, {"rules": [{"exitCodes": [1, 2]}, {"exitCodes": [3]}], "inPlace": True}, {"rules": [{"exitCodes": [1]}, {"exitCodes": [1]}]}),
    "template": (
        None,
        {"metadata": {"labels": {"a": "b"}, "annotations": {"ddpjob.dev/x": "1"}}},
        {"metadata": {"labels": {"ddpjob.dev/x": "1"}, "annotations": {}}},
        {"spec": {"initContainers": [{"name": "trainer", "env": [{"name": "RANK"}]}], "containers": [{"name": "trainer", "restartPolicy": "Always"}]}},
        {"spec": {"initContainers": [{"name": "b", "env": []}], "containers": [{"name": "trainer", "env": [{"name": "RANK"}], "livenessProbe": {}}]}},
        {"spec": {"resourceClaims": [{"name": "gpu"}], "initContainers": [{"name": "b", "image": "b"}], "containers": [{"name": "b"}]}},
    ),
}  # fmt: skip
NUMBER_OF_JOBS = 80


def some_jobs() -> list[dict[str, Any]]:
    choose = random.Random(0).choice  # noqa: S311  # no secret depends on it
    names = ("job", "Job", "j" * 53)
    return [
        {
            "metadata": {"name": choose(names)},
            "spec": {field: value for field, options in CHOICES.items() if (value := choose(options)) is not None},
        }
        for _ in range(NUMBER_OF_JOBS)
    ]


@functools.cache
def reference(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def test_every_rule_has_the_result_that_cel_python_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    results = defaultdict(set)

    def compared(rule: str) -> cel.Program:
        def evaluate(values: Any) -> Any:
            found = cel.program(rule)(values)
            assert found == bool(reference(rule).evaluate({"self": json_to_cel(values["self"])})), (rule, values)
            results[rule].add(found)
            return found

        return evaluate

    monkeypatch.setattr(rules, "program", compared)
    monkeypatch.setattr(rules, "submitted_schema", functools.cache(submitted_schema))
    for job in some_jobs():
        rules.broken_rules(job)
    assert len(results) > 20
    assert [rule for rule, found in results.items() if found != {True, False}] == []


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a.c[0].matches('b') && a.c[0].contains('c') && a.c[0].startsWith('a')", True),
        ("1 + 2 - 4 < 0 && !(1 == 2) || false_", True),
        ("1 > 2 ? 3 : 1 >= 2 ? 4 : 5", 5),
        ("!a.b == true_", False),
        ("a.c[1 - 1].size() + 1", 4),
        ("has(a.b) && !has(a.d) && !has(a.e.f)", True),
    ],
)
def test_operators_bind_as_in_cel(expression: str, value: Any) -> None:
    values: dict[str, Any] = {"a": {"b": True, "c": ["abc"], "e": {}}, "true_": True, "false_": False}
    assert cel.program(expression)(values) == value
    converted = {name: json_to_cel(item) for name, item in values.items()}
    assert reference(expression).evaluate(converted) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("self.map(x, x)", "the function map is not supported"),
        ("self.a ==", "found the end; expected a name"),
        ("(1", "found the end; expected ,"),
        ("1 2", "found 2; expected the end"),
        ("'a\\n'", "contains what is not supported"),
        ("a * 2", "contains what is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cel.program(expression)
