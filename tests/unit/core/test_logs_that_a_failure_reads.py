"""How many logs are read for one failure, however many ranks end and in whatever order they show."""

from random import Random

from builders import NOW, ended, observed, program
from ddpjob_operator.core.failure.cause import MAX_LOGS_READ, wanted_logs
from ddpjob_operator.core.model import NO_LOG


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
