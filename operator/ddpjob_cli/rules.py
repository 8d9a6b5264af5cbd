"""Evaluates the validation rules of the DDPJob as the API server evaluates them at apply.

The rules are the CEL expressions of the CRD (`x-kubernetes-validations`). They are evaluated on the object with the
defaults of the CRD. Rules for updates (`oldSelf`) do not apply, because every local job is new.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ddpjob_cli.cel import program
from ddpjob_operator.api.crd import submitted_schema
from ddpjob_operator.api.resource import IS_STORED, Body

_Schema = Mapping[str, Any]


def broken_rules(job: Body) -> list[str]:
    """Path and message of each rule that the job violates. The types of its fields must be valid."""
    schema = submitted_schema()
    return list(_broken(schema, _with_defaults(schema, job), ""))


def _with_defaults(schema: _Schema, value: Any) -> Any:
    if isinstance(value, Mapping):
        fields = schema.get("properties", {})
        defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
        return {name: _with_defaults(fields.get(name, {}), inner) for name, inner in {**defaults, **value}.items()}
    if isinstance(value, list):
        return [_with_defaults(schema.get("items", {}), item) for item in value]
    return value


def _broken(schema: _Schema, value: Any, path: str) -> Iterator[str]:
    for validation in schema.get("x-kubernetes-validations", ()):
        rule = validation["rule"].removeprefix(IS_STORED)
        if "oldSelf" not in rule and not program(rule)({"self": value}):
            yield f"{path}: {validation['message']}".removeprefix(": ")
    if isinstance(value, Mapping):
        for name, field in schema.get("properties", {}).items():
            if name in value:
                yield from _broken(field, value[name], f"{path}.{name}".removeprefix("."))
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _broken(schema.get("items", {}), item, f"{path}[{index}]")
