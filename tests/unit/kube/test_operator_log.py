"""The operator's log as JSON."""

import json
import logging

from ddpjob_operator.__main__ import JsonFormatter
from ddpjob_operator.kube.keys import about


def line(**more: object) -> dict[str, object]:
    """A line of the log, parsed, without the fields that depend on the moment."""
    record = logging.makeLogRecord(
        {"name": "n", "levelname": "INFO", "msg": "%s/%s fails", "args": ("ns", "j"), **more}
    )
    fields: dict[str, object] = json.loads(JsonFormatter().format(record))
    del fields["time"]
    return fields


def test_a_message_about_a_job_has_its_fields() -> None:
    assert line(**about(("ns", "j"), attempt=2, reason="Hung")) == {
        "level": "INFO",
        "logger": "n",
        "message": "ns/j fails",
        "namespace": "ns",
        "name": "j",
        "attempt": 2,
        "reason": "Hung",
    }


def test_other_messages_have_none() -> None:
    assert line() == {"level": "INFO", "logger": "n", "message": "ns/j fails"}
