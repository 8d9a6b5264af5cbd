"""What `ddpjob run` prints about the states of a job."""

import pytest

from ddpjob_cli.display import Display
from ddpjob_operator.api.status import DDPJobStatus, Failure
from ddpjob_operator.core.failure.messages import failure_sentence


def test_a_failure_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure(
        attempt=1,
        reason="ProgramError",
        rank=1,
        pod="a-1-1",
        exit_code=1,
        message="E (+; x",
        time="2026-11-23T10:00:00Z",
    )
    said = failure_sentence(failure)
    messages = {
        "Stopping": said,
        "BackingOff": f"2 failures in a row: the next attempt starts at 10:00; {said}",
        "Creating": f"2 of 2 pods do not exist yet; {said}",
        "Running": f"all 2 pods run in attempt 2. Before: {said}; without spec.checkpoint a restart begins at step 0",
    }
    with Display(processes_per_node=1, verbose=False) as display:
        for reason, message in messages.items():
            display.on_status(
                DDPJobStatus(phase="Restarting", reason=reason, message=message, attempt=2, failure=failure)
            )
    assert capsys.readouterr().out.splitlines() == [
        f"ddpjob: attempt 2: Restarting: {said}",
        "ddpjob: attempt 2: Restarting: 2 failures in a row: the next attempt starts at 10:00",
        "ddpjob: attempt 2: Restarting: 2 of 2 pods do not exist yet",
        "ddpjob: attempt 2: Restarting: all 2 pods run in attempt 2; without spec.checkpoint a restart begins at step 0",
    ]
