"""Tables of the fields of a DDPJob, made from the same schema as the CRD."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ddpjob_operator.api.crd import structural
from ddpjob_operator.api.resource import Resource
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import DDPJobStatus


def spec() -> str:
    """The fields of `spec` as a Markdown table."""
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    rows += (f"| `{path}` | {kind} | {default} | {text} |" for path, kind, default, text in _rows(DDPJobSpec))
    return "\n".join(rows)


def status() -> str:
    """The fields of `status` as a Markdown table."""
    rows = ["| field | type | meaning |", "| --- | --- | --- |"]
    rows += (f"| `{path}` | {kind} | {text} |" for path, kind, _, text in _rows(DDPJobStatus))
    return "\n".join(rows)


def _rows(model: type[Resource]) -> Iterator[tuple[str, str, str, str]]:
    return _rows_of("", structural(model.model_json_schema()))


def _rows_of(prefix: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in schema["properties"].items():
        path = prefix + name
        required = name in schema.get("required", ())
        yield path, _kind(field), _default(field, required), field.get("description", "").replace("|", "\\|")
        items = field.get("items", {})
        if "properties" in field:
            yield from _rows_of(f"{path}.", field)
        elif "properties" in items:
            yield from _rows_of(f"{path}[].", items)


def _kind(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {field['items'].get('type', 'any')}s"
    if field.get("format") == "date-time":
        return "time"
    bounds = [
        f"≥ {field['minimum']:,}" if "minimum" in field else "",
        f"≤ {field['maximum']:,}" if "maximum" in field else "",
    ]
    return ", ".join(part for part in (str(field.get("type", "any")), *bounds) if part)


def _default(field: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    default = field.get("default")
    return "" if default in (None, {}, []) else f"`{json.dumps(default)}`"
