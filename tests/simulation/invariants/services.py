"""Where an operator may point the Service of rank 0."""

from ddpjob_operator.api import names
from simulation.api_server import JOBS, Body, owner_uid
from simulation.invariants.bodies import is_operator
from simulation.invariants.memory import Memory


def check_service(memory: Memory, old: Body | None, new: Body | None, by: str) -> None:
    """It leads to the current attempt, never to one before, and no operator deletes it."""
    job = memory.world.server.by_uid(JOBS, owner_uid(new or old or {}))
    if job is None:
        return
    if not is_operator(by):
        memory.of(job).service_touched = True
        return
    if new is None:
        memory.world.fail(f"{by} deletes a Service")
        return
    attempt = int(new["spec"]["selector"][names.LABEL_ATTEMPT])
    current = (job.get("status") or {}).get("attempt", 1)
    memory.must(attempt <= current, f"the Service is pointed at attempt {attempt}, and the job is at {current}")
    if old is not None and not memory.of(job).service_touched:
        former = int(old["spec"]["selector"].get(names.LABEL_ATTEMPT, 0))
        memory.must(former <= attempt, f"the Service is pointed back from attempt {former} to {attempt}")
