"""How many logs are read for one failure, however many ranks end and in whatever order they show."""

from random import Random

from ddpjob_operator.core.failure.cause import MAX_LOGS_READ, pods_with_logs_in_use, wanted_logs
from ddpjob_operator.core.model import NO_LOG
from support.builders import NOW, ended, in_attempt, observed, pod, program


def test_a_bounded_number_of_logs_is_read_however_ranks_end() -> None:
    of, random = program(nodes=64), Random(7)  # noqa: S311 no secret
    ranks = random.sample(range(64), 64)
    pods = [ended(of, rank, code=1, ended_seen=NOW + number) for number, rank in enumerate(ranks)]
    wanted: set[str] = set()
    for num_ended in range(1, 65):
        shown = random.sample(pods[:num_ended], num_ended)
        seen = observed(of, *shown, logs=dict.fromkeys(wanted, NO_LOG))
        wanted |= {lookup.uid for lookup in wanted_logs(seen, shown)}
    assert wanted == {pod.uid for pod in pods[:MAX_LOGS_READ]}


def test_what_a_log_has_shown_is_kept_when_its_pod_is_gone() -> None:
    """Its node may be removed while other ranks still run. The log cannot be read again, and holds the last progress."""
    of = in_attempt(program(nodes=2), 3)
    seen = observed(of, pod(of, 1, 3), vanished=(ended(of, 0, 3), ended(of, 0, 1, uid="of an earlier attempt")))
    assert pods_with_logs_in_use(seen) == {"pod-uid-3-0", "pod-uid-3-1"}
