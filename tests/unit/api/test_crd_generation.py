"""What is generated from the models is what lies in the repository."""

from pathlib import Path

import pytest

from ddpjob_operator.api import crd

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("path", ["manifests/crd/ddpjob.yaml", "charts/ddpjob-operator/files/crd/ddpjob.yaml"])
def test_the_file_is_what_the_models_say(path: str) -> None:
    assert (REPOSITORY / path).read_text() == crd.render(), "run `make generate`"


def test_the_schema_is_structural() -> None:
    text = crd.render()
    assert not [word for word in ("$ref", "anyOf", "allOf", "title:", "null") if word in text]
