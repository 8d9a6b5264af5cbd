"""A defect of the operator that shows in one job: an exception that nothing expects."""

import traceback
from pathlib import Path

from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core import render
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.untrusted import printable

_PACKAGE = Path(__file__).parent.parent


def after_defect(observed: Observed, error: Exception, now: float) -> DDPJobStatus:
    """The status of a job on which the operator fails: it is left as it is, and a condition says by what.

    The exception's text is only in the log: it may hold anything, and with a text that differs in each retry, every retry would
    write a status.
    """
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    message = (
        f"the operator fails on this job by a defect ({type(error).__name__} in {_place(error)}) and leaves the job and its pods as"
        " they are; it tries again, later each time; its log has the traceback next to the name of the job"
    )
    return render.stalled(observed, Reason.OPERATOR_DEFECT, printable(message), now)


def _place(error: Exception) -> str:
    """The innermost line of the operator's own that the exception passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    if not own:
        return "an unknown place"
    return f"{Path(own[-1].filename).relative_to(_PACKAGE)}, line {own[-1].lineno}"
