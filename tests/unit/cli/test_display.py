"""What `ddpjob run` prints about the states of a job."""

import io

import pytest
from rich.console import Console

from ddpjob_cli.display import Display, _Bar
from ddpjob_operator.api.status import DDPJobStatus, Failure, Progress
from ddpjob_operator.core.failure.messages import failure_sentence


@pytest.mark.parametrize(
    ("width", "last"), [(200, "checkpoint at step 60"), (80, "loss 0.00959"), (60, "ETA 11s"), (48, "(26%)")]
)
def test_a_narrow_terminal_shows_the_facts_that_say_most(width: int, last: str) -> None:
    terminal = Console(force_terminal=True, width=width, file=io.StringIO())
    bar = _Bar(terminal)
    progress = Progress(step=100, total_steps=384, loss=0.00959, eta="11s", checkpoint_step=60)
    bar.show(DDPJobStatus(phase="Running", attempt=1, progress=progress))
    with terminal.capture() as shown:
        terminal.print(bar._progress.get_renderable())
    line = shown.get().rstrip()
    assert "\n" not in line
    assert f"{last} " in line
    assert "…" not in line


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
