"""A gang whose every rank ended with exit code 0: the job has succeeded."""

from ddpjob_operator.api.names import Reason
from ddpjob_operator.core import separate_trainings
from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.decision import Advice, AwaitEvidence, Finish
from ddpjob_operator.core.model import NO_LOG, LogEnd, Pod
from ddpjob_operator.core.policies.suspension import is_edited
from ddpjob_operator.core.situation import Situation

#: The log of a program that ended sooner, and that has printed no progress so far, is not read: most such programs are
#: scripts.
SHORT_SECONDS = 10.0


def all_ranks_succeeded(situation: Situation) -> Advice:
    """Finish the job once rank 0's log is read, which holds the last progress, if it may hold some."""
    if not situation.gang.all_succeeded or is_edited(situation):
        return Advice()
    first = situation.gang.current[0]
    log = situation.observed.logs.get(first.uid, NO_LOG if _ended_within_seconds(situation, first) else None)
    if log is None:
        return Advice(decision=AwaitEvidence(), lookups=(ReadLog(pod=first.name, uid=first.uid),))
    num_nodes = situation.gang.num_nodes
    message = f"all {num_nodes} ranks ended with exit code 0" if num_nodes > 1 else "the rank ended with exit code 0"
    if alone := separate_trainings.warning(situation.spec):
        message += f"; {alone}"
    elif num_nodes > 1 and situation.spec.trainer is None and _is_of_rank_0(log):
        second = situation.gang.current[1]
        of_second = situation.observed.logs.get(second.uid)
        if of_second is None:
            return Advice(decision=AwaitEvidence(), lookups=(ReadLog(pod=second.name, uid=second.uid),))
        if _is_of_rank_0(of_second):
            message += (
                f"; pod {second.name} printed what only rank 0 of a training does, too: nobody may have joined the master and each pod"
                " may have trained alone, so check that the program uses all nodes"
            )
    return Advice(decision=Finish(succeeded=True, reason=Reason.SUCCEEDED, message=message, progress=log.progress))


def _is_of_rank_0(log: LogEnd) -> bool:
    return log.progress is not None or log.says_rank_0


def _ended_within_seconds(situation: Situation, first: Pod) -> bool:
    """Whether rank 0 is a program of the user's that ended within seconds of having a node, and printed no progress."""
    prints = situation.spec.trainer or situation.observed.progress or situation.status.progress
    finished = first.exit.finished if first.exit else None
    if prints or finished is None or first.placed is None:
        return False
    return finished - first.placed < SHORT_SECONDS
