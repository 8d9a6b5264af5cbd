"""`ddpjob validate` refuses what the API server refuses, and nothing else: on generated jobs, each field with values of each type."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ddpjob_cli.manifest import ManifestError, read_manifest
from ddpjob_operator.api import names
from ddpjob_operator.api.crd import submitted_schema
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import RejectedError
from ddpjob_operator.transport.resources import DDPJOBS
from support.operator_cluster import Namespace

_TWICE = [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
VALUES: tuple[Any, ...] = (
    2,
    "2",
    True,
    2.0,
    2.5,
    -1,
    2**63,
    "",
    "x",
    None,
    [],
    {},
    ["x"],
    ["x", "x"],
    {"a": "b"},
    {"a": 5},
    _TWICE,
)
NUM_JOBS = 300


def fields(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name)
        yield from fields(inner, (*path, name))


def generated(number: int) -> Iterator[dict[str, Any]]:
    """Jobs with one or two fields that any hand may have written; the same in each run."""
    choose = random.Random(7)  # noqa: S311
    places = sorted(
        path for path in fields(submitted_schema()) if path[0] in ("metadata", "spec") and path != ("spec",)
    )
    places += [
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("spec", "nonsense"),
        ("spec", "template", "spec", "nonsense"),
    ]
    for _ in range(number):
        job: dict[str, Any] = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "j"},
            "spec": {"command": ["python", "x.py"], "nodes": 2},
        }
        for *parents, last in choose.sample(places, choose.choice((1, 1, 2))):
            place = job
            for parent in parents:
                inner = place.get(parent)
                place[parent] = inner if isinstance(inner, dict) else {}
                place = place[parent]
            place[last] = copy.deepcopy(choose.choice(VALUES))
        yield job


async def test_validate_and_the_api_server_agree(client: Client, namespace: Namespace, tmp_path: Path) -> None:
    differences = []
    for job in generated(NUM_JOBS):
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        try:
            read_manifest(file)
            ours = ""
        except ManifestError as error:
            ours = str(error).partition(": ")[2]
        try:
            await client.create(DDPJOBS, namespace.name, job, dry_run=True)
            theirs = ""
        except RejectedError as error:
            theirs = error.message
        if bool(ours) != bool(theirs):
            differences.append(
                f"{job['spec']} {job['metadata']}\n    ddpjob: {ours or 'valid'}\n    server: {theirs or 'valid'}"
            )
    assert not differences, "\n".join(differences)
