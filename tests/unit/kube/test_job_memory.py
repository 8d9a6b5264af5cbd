from dataclasses import replace

from ddpjob_operator.kube.engine.job_memory import JobMemories
from ddpjob_operator.kube.keys import key_of
from support.builders import job

FIRST = job()
SECOND = replace(FIRST, uid="of a later job of the same name")


def test_a_later_job_of_the_same_name_begins_with_nothing() -> None:
    memories = JobMemories()
    memories.of_job(FIRST).begun_attempt = 3
    assert memories.is_of_another(SECOND)
    assert memories.of_job(SECOND).begun_attempt is None
    memories.forget(key_of(FIRST))
    assert not memories.is_of_another(SECOND)
    assert memories.of_job(SECOND).begun_attempt is None


def test_what_still_ends_for_an_earlier_job_changes_nothing_of_the_later_one() -> None:
    memories = JobMemories()
    of_first = memories.of_job(FIRST)
    memories.forget(key_of(FIRST))
    memories.of_job(SECOND).written_at = 5.0
    of_first.written_at = memories.of_job(FIRST).written_at = 7.0
    assert memories.of(key_of(SECOND)) is memories.of_job(SECOND)
    assert memories.of_job(SECOND).written_at == 5.0
