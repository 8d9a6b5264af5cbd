"""How large a spec may be: what the API server stores takes ten times its size in the memory of the operator."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob_cli.manifest import ManifestError, read_manifest
from ddpjob_operator.core.model import Job, Observed
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import job_of
from ddpjob_operator.core.stored_spec import MAX_SPEC_BYTES
from support.builders import NOW

CREATED = {
    "type": "Created",
    "status": "True",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "reason": "x",
    "message": "",
}


def body(num_bytes: int, generation: int = 1, **status: Any) -> dict[str, Any]:
    """A job whose spec has this size."""
    terms = {"spec": {"nodeSelector": {"a": ""}}}
    spec: dict[str, Any] = {"command": ["true"], "template": terms}
    rest = num_bytes - len('{"command":["true"],"template":{"spec":{"nodeSelector":{"a":""}}}}')
    terms["spec"]["nodeSelector"]["a"] = "x" * rest
    metadata = {"namespace": "ns", "name": "j", "uid": "u", "resourceVersion": "1", "generation": generation}
    return {"metadata": metadata, "spec": spec, "status": status}


def read(body: dict[str, Any], known: Job | None = None) -> Job:
    return job_of(body, known)


def test_a_new_job_with_a_larger_spec_fails_with_the_measured_size_and_its_spec_is_not_kept() -> None:
    job = read(body(MAX_SPEC_BYTES + 1))
    made = plan(Observed(job=job), NOW)
    assert job.spec is None
    assert (made.status.phase, made.status.reason) == ("Failed", "InvalidSpec")
    assert "131073 bytes as JSON, and 131072 are the most" in made.status.message
    assert read(body(MAX_SPEC_BYTES)).spec is not None


RUNS: dict[str, Any] = {"attempt": 1, "observedGeneration": 1, "conditions": [CREATED]}
REFUSED = {**CREATED, "type": "Stalled", "reason": "InvalidSpec"}


@pytest.mark.parametrize(
    ("status", "is_kept"),
    [
        (RUNS, True),
        ({}, False),
        ({**RUNS, "observedGeneration": 0}, False),  # it was edited while this operator was down
        ({**RUNS, "conditions": [CREATED, REFUSED]}, False),  # it was edited, and the operator has said so
    ],
    ids=["its pods run with it", "new", "edited", "edited and refused"],
)
def test_a_job_that_runs_with_a_larger_spec_of_an_earlier_release_goes_on(status: Any, is_kept: bool) -> None:
    assert (read(body(2 * MAX_SPEC_BYTES, **status)).spec is not None) == is_kept


def test_an_edit_that_makes_the_spec_of_a_running_job_too_large_leaves_its_pods_as_they_are() -> None:
    small = read(body(1000, **RUNS))
    large = read(body(MAX_SPEC_BYTES + 1, 2, **RUNS), small)
    made = plan(Observed(job=large), NOW)
    assert not made.actions
    (stalled,) = [found for found in made.status.conditions if found.type == "Stalled"]
    assert "131073 bytes" in stalled.message
    after = made.status.as_json()
    assert read(body(MAX_SPEC_BYTES + 1, 2, **after)).spec is None, "also after a restart of the operator"


def test_ddpjob_validate_refuses_it_with_the_same_sentence(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    manifest = {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": {"name": "j"}}
    file.write_text(yaml.safe_dump({**manifest, "spec": body(MAX_SPEC_BYTES + 1)["spec"]}))
    with pytest.raises(ManifestError, match="131073 bytes as JSON, and 131072 are the most"):
        read_manifest(file)


def test_a_spec_that_is_nested_too_deeply_to_be_measured_is_refused_as_before() -> None:
    nested: dict[str, Any] = {}
    for _ in range(5000):
        nested = {"a": nested}
    given = body(1000)
    given["spec"]["template"]["spec"]["affinity"] = nested
    assert read(given).spec_error
