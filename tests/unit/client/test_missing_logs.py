"""What a reader learns about logs that are not there."""

import pytest

from ddpjob.client import logs
from ddpjob.client.jobs import read_job


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (logs.Selection(), "no pods of attempt 2 exist; the job is Running: all pods run"),
        (logs.Selection(attempt=1), "no pods of attempt 1 exist;"),
        (logs.Selection(attempt=7), "attempt 7 has not started, and the newest one is 2;"),
        (logs.Selection(ranks=frozenset({9, 8})), "no pods of attempt 2 with rank 8, 9 exist;"),
    ],
)
def test_what_does_not_exist_is_named(selection: logs.Selection, text: str) -> None:
    body = {
        "apiVersion": "ddpjob.dev/v1beta1",
        "kind": "DDPJob",
        "metadata": {"name": "j", "namespace": "team", "uid": "u"},
        "spec": {"command": ["x"]},
        "status": {"phase": "Running", "attempt": 2, "message": "all pods run"},
    }
    notes: list[str] = []

    logs.note_missing(read_job(body), [], selection, notes.append)

    assert len(notes) == 1
    assert notes[0].startswith(text)
