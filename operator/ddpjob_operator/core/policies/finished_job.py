"""A job that has ended: nothing of it runs, and what failed stays as evidence until the job is deleted."""

from ddpjob_operator.core import render
from ddpjob_operator.core.actions import Action, DeleteJob, DeletePods, Plan
from ddpjob_operator.core.model import Observed
from ddpjob_operator.core.stopping import first_end_of_keeping, next_overdue, node_lookups, stop_and_keep_logs
from ddpjob_operator.core.times import epoch_seconds, soonest
from ddpjob_operator.scheduling.interface import Provider


def clean_up(observed: Observed, now: float, provider: Provider) -> Plan:
    """Stop what still runs and keep every pod with its log; delete the job when its time to live has passed."""
    status, spec = observed.job.status, observed.job.spec
    ended_at = epoch_seconds(status.completion_time) if status.completion_time else now
    ttl = spec.ttl_seconds_after_finished if spec else None
    if ttl is not None and ended_at + ttl <= now:
        return Plan(status=render.still_finished(observed, now), actions=_delete_job(observed))
    ranks = [pod for pod in observed.pods if not pod.is_placeholder]
    alive = [pod for pod in ranks if not pod.all_ended]
    wake_ups = [
        next_overdue(observed.pods, now),
        first_end_of_keeping(alive, ended_at),
        None if ttl is None else ended_at + ttl,
    ]
    return Plan(
        status=render.still_finished(observed, now),
        actions=(
            *stop_and_keep_logs(observed, ranks, ended_at, now),
            *render.remove_placeholders(observed, (pod for pod in observed.pods if pod.is_placeholder), now),
            *provider.end(observed),
        ),
        lookups=node_lookups(observed.job.status, observed.pods, now),
        wake_at=soonest(wake_ups, now),
    )


def _delete_job(observed: Observed) -> tuple[Action, ...]:
    # The garbage collector would delete the pods as well, but one by one and at its own slow pace.
    collection = (DeletePods(attempt=None),) if len(observed.pods) > 1 else ()
    return (*collection, DeleteJob(name=observed.job.name, uid=observed.job.uid))
