"""Evaluates the validation rules of the DDPJob as the API server evaluates them at apply.

The rules are the CEL expressions of the CRD (`x-kubernetes-validations`). They are evaluated on the object with the
defaults of the CRD. Rules for updates (`oldSelf`) do not apply, because every local job is new.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ddpjob_cli.cel import program
from ddpjob_operator.api.crd import submitted_schema
from ddpjob_operator.api.resource import IS_STORED, Body

_Schema = Mapping[str, Any]
#: Types of JSON by their names in the schema, with what people call them in YAML.
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "object": (dict, "fields with values"),
    "array": (list, "a list"),
    "string": (str, "text, in quotes"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number, without quotes"),
    "number": ((int, float), "a number, without quotes"),
}


def wrong_values(job: Body) -> list[str]:
    """Path and fault of each value that the API server refuses for its type, or because a list may have it only once.

    The models of the operator read more: they take "2" and true for a number, as other releases may have stored them.
    """
    schema = submitted_schema()
    strings = {"type": "object", "additionalProperties": {"type": "string"}}
    metadata = {"type": "object", "properties": {"labels": strings, "annotations": strings}}
    return list(_wrong({**schema, "properties": {**schema["properties"], "metadata": metadata}}, job, ""))


def without_nulls(job: Body) -> Body:
    """The job without declared fields that are null, which the API server takes as left out."""
    return dict(_without_nulls(submitted_schema(), job))


def _without_nulls(schema: _Schema, value: Any) -> Any:
    fields = schema.get("properties", {})
    if isinstance(value, dict):
        kept = {name: inner for name, inner in value.items() if inner is not None or name not in fields}
        return {name: _without_nulls(fields.get(name, {}), inner) for name, inner in kept.items()}
    return [_without_nulls(schema.get("items", {}), item) for item in value] if isinstance(value, list) else value


def _wrong(schema: _Schema, value: Any, path: str) -> Iterator[str]:
    expected, called = _TYPES.get(
        "" if "x-kubernetes-int-or-string" in schema else schema.get("type", ""), (object, "")
    )
    is_whole = isinstance(value, float) and value.is_integer() and schema.get("type") == "integer"  # 2.0 is 2 in JSON
    if not (isinstance(value, expected) or is_whole) or (isinstance(value, bool) and expected not in (bool, object)):
        yield f"{path} is {json.dumps(value)}; expected {called}{_such_as(schema, value)}"
        return
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name, inner in value.items():
            field = known.get(name) or schema.get("additionalProperties")
            if isinstance(field, Mapping) and not (inner is None and name in known):  # null is left out
                yield from _wrong(field, inner, f"{path}.{name}".removeprefix("."))
    if isinstance(value, list):
        keys, seen = schema.get("x-kubernetes-list-map-keys", ()), set()
        for index, item in enumerate(value):
            yield from _wrong(schema.get("items", {}), item, f"{path}[{index}]")
            key = json.dumps([item.get(key) for key in keys] if keys and isinstance(item, dict) else item)
            if key in seen and schema.get("x-kubernetes-list-type") in ("map", "set"):
                named = " and ".join(f"the {key} {item.get(key)}" for key in keys if isinstance(item, dict)) or str(
                    item
                )
                yield f"{path}[{index}] has {named} as another entry before it; remove one of them"
            seen.add(key)


def _such_as(schema: _Schema, value: Any) -> str:
    """What was meant by a value of another type, as far as it can be told."""
    meant: Any = None
    if schema.get("type") == "string" and isinstance(value, int | float):
        meant = json.dumps(value)
    elif schema.get("type") == "array" and isinstance(value, str) and schema["items"].get("type") == "string":
        meant = value.split()
    elif schema.get("type") == "array" and isinstance(value, dict) and "name" in schema["items"].get("properties", ()):
        meant = [{"name": name, "value": str(inner)} for name, inner in value.items()]
    return f", such as {json.dumps(meant)}" if meant else ""


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
            name = f" ({item['name']})" if isinstance(item, Mapping) and item.get("name") else ""
            yield from _broken(schema.get("items", {}), item, f"{path}[{index}]{name}")
