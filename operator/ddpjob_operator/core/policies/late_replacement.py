"""A new pod that comes too late: the ranks of the others have ended before it joined them, and all start again.

With exit code 0: they would have waited for it, so they had left the training together, and the pod was lost in the seconds after
that. The new pod would wait for ranks that are done. A job has succeeded only when each of its ranks has, and what the program of
the lost pod still had to do is not known. The next attempt finds the last checkpoint, and no step to do.

With exit code 69 they have waited as long as they do, which says nothing about the program.
"""

from ddpjob_operator.api.names import Phase, contract
from ddpjob_operator.api.status import MAX_TEXT_LENGTH, Failure
from ddpjob_operator.core.actions import ReadLog
from ddpjob_operator.core.decision import Advice, StartNextAttempt
from ddpjob_operator.core.failure.cause import End
from ddpjob_operator.core.failure.messages import failure_sentence
from ddpjob_operator.core.gang import Gang
from ddpjob_operator.core.model import NO_LOG, Pod
from ddpjob_operator.core.policies.whole_gang import FINISHING_SECONDS
from ddpjob_operator.core.render.pods import REPLACEMENT_SECONDS
from ddpjob_operator.core.situation import Situation
from ddpjob_operator.core.untrusted import beginning


def restart_what_cannot_meet(situation: Situation) -> Advice:
    """Begin the next attempt once a rank has succeeded while the new pod of another one has not joined the gang.

    A new pod that does not run yet has not. One that runs may have, and end a moment later, which rank 0 reports. The loss has
    been counted already.
    """
    gang, loss, first = situation.gang, situation.failure, situation.gang.first_success
    late = [rank.rank for rank in situation.status.replaced_pods if not _has_succeeded(gang, rank.rank)]
    if not late or first is None or loss is None or not loss.replaced:
        return Advice()
    if all(_runs(gang, rank) for rank in late):
        if situation.now < first + FINISHING_SECONDS:
            return Advice(wake_at=first + FINISHING_SECONDS)
        if lookups := _last_progress(situation):
            return Advice(lookups=lookups)
        if have_joined(situation) or _is_unread(situation):
            return Advice()
    num_done = gang.num_nodes - len(gang.unfinished) - len(gang.missing)
    too_late = f"{num_done} of {gang.num_nodes} ranks ended with exit code 0 before its new pod joined them"
    return Advice(decision=_restart_all(loss, too_late))


def restart_after_the_wait(situation: Situation, cause: End) -> StartNextAttempt | None:
    """Begin the next attempt if the cause is a rank that has waited for a new pod, which has not joined meanwhile; None otherwise.

    The image may be large, or a node may not respond for long. The exit code means this only in pods with our launcher.
    """
    loss, pod, running = situation.failure, situation.gang.current.get(cause.rank), situation.clocks.running
    gave_up = cause.exit_code == contract.EXIT_PEER_LOST and pod is not None and pod.is_supervised
    if loss is None or not loss.replaced or not gave_up:
        return None
    # They began to wait before it ran. What ends later is not the end of that wait.
    if running is not None and (cause.seen >= running + REPLACEMENT_SECONDS or have_joined(situation)):
        return None
    return _restart_all(loss, "its new pod did not join as long as the others waited for it")


def have_joined(situation: Situation) -> bool:
    """Whether rank 0 has reported that the newest pod of each replaced rank has joined. An unreadable log reports none.

    No pod can join that the status does not name, so equal sums are sums of equal numbers.
    """
    done = _done_rank_0(situation.gang)
    last = situation.observed.logs.get(done.uid, NO_LOG).progress if done else None
    reported = max((seen.joined_replacements or 0 for seen in (last, situation.progress) if seen), default=0)
    return reported >= sum(pod.replacement for pod in situation.status.replaced_pods)


def _restart_all(loss: Failure, too_late: str) -> StartNextAttempt:
    """The decision to restart the whole gang after the loss of a pod, which has been counted already."""
    message = (
        f"{beginning(loss.message, MAX_TEXT_LENGTH - len(too_late) - 2)}; {too_late}" if loss.message else too_late
    )
    ended = loss.model_copy(update={"replaced": False, "message": message})
    return StartNextAttempt(phase=Phase.RESTARTING, reason=loss.reason, message=failure_sentence(ended), failure=ended)


def _has_succeeded(gang: Gang, rank: int) -> bool:
    return rank in gang.current and gang.current[rank].succeeded


def _runs(gang: Gang, rank: int) -> bool:
    return rank in gang.current and gang.current[rank].running


def _is_unread(situation: Situation) -> bool:
    """Whether rank 0 runs and nobody has read its log, which may say that the new pods have joined."""
    pod, observed = situation.gang.current.get(0), situation.observed
    is_read = observed.progress is not None or observed.silent_seconds > 0
    return pod is not None and pod.running and not is_read


def _last_progress(situation: Situation) -> tuple[ReadLog, ...]:
    """The lookup of the last progress where rank 0 has ended and its log is not read."""
    done = _done_rank_0(situation.gang)
    return () if done is None or done.uid in situation.observed.logs else (ReadLog(pod=done.name, uid=done.uid),)


def _done_rank_0(gang: Gang) -> Pod | None:
    pod = gang.current.get(0)
    return pod if pod is not None and pod.succeeded else None
