"""The operator understands every argument that the chart can give it, and the schema allows what the operator does."""

import json

import pytest

from ddpjob_operator.settings import LeaseName, Settings, settings_from
from support.chart_render import CHART, operator_arguments

SCHEMA = json.loads((CHART / "values.schema.json").read_text())["properties"]["operator"]["properties"]


def test_the_operator_reads_the_default_arguments():
    assert settings_from(operator_arguments()) == Settings(
        namespaces=(),
        trainer_image="localhost/ddpjob/trainer:0.1.0",
        lease=LeaseName(namespace="ddpjob-system", name="ddpjob-operator"),
        identity="ddpjob-operator-0",
        health_port=8080,
        probe_socket="/tmp/probes",
        workers=32,
        progress_interval_seconds=10,
        log_level="INFO",
        log_format="plain",
    )


def test_the_operator_reads_namespaces_and_every_level_and_format_of_its_log():
    arguments = operator_arguments({"watch": {"namespaces": ["team-a", "team-b"]}})
    assert settings_from(arguments).namespaces == ("team-a", "team-b")
    for key, read in (("logLevel", lambda it: it.log_level.lower()), ("logFormat", lambda it: it.log_format)):
        for value in SCHEMA[key]["enum"]:
            assert read(settings_from(operator_arguments({"operator": {key: value}}))) == value


@pytest.mark.parametrize(
    ("argument", "refused", "accepted"),
    [
        ("--workers", SCHEMA["workers"]["minimum"] - 1, SCHEMA["workers"]["minimum"]),
        ("--workers", SCHEMA["workers"]["maximum"] + 1, SCHEMA["workers"]["maximum"]),
        ("--progress-interval-seconds", SCHEMA["progressIntervalSeconds"]["minimum"] - 1, 0),
    ],
)
def test_the_schema_has_the_operators_bounds(argument, refused, accepted):
    def given(value):
        return settings_from([*operator_arguments(), f"{argument}={value}"])

    assert given(accepted)
    with pytest.raises(SystemExit):
        given(refused)
