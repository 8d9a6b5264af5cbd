"""A gang whose every rank ended with exit code 0: the job has succeeded."""

from ddpjob_operator.api.names import Reason
from ddpjob_operator.core.decision import Advice, AwaitEvidence, Finish
from ddpjob_operator.core.model import ReadLog
from ddpjob_operator.core.policies.suspension import is_edited
from ddpjob_operator.core.situation import Situation


def all_ranks_succeeded(situation: Situation) -> Advice:
    """Finish the job once rank 0's log is read, which holds the last progress."""
    if not situation.gang.all_succeeded or is_edited(situation):
        return Advice()
    first = situation.gang.current[0]
    log = situation.observed.logs.get(first.uid)
    if log is None:
        return Advice(decision=AwaitEvidence(), lookups=(ReadLog(pod=first.name, uid=first.uid),))
    num_nodes = situation.gang.num_nodes
    message = f"all {num_nodes} ranks ended with exit code 0" if num_nodes > 1 else "the rank ended with exit code 0"
    return Advice(decision=Finish(succeeded=True, reason=Reason.SUCCEEDED, message=message, progress=log.progress))
