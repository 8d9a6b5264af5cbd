"""What the builder of the tests hands over to each image is what the Dockerfile copies; docker has the whole checkout."""

from support import REPOSITORY
from support.images import SOURCES, TARGETS, names


def test_each_image_has_its_lock_and_its_code_and_the_operator_no_trainer() -> None:
    assert tuple(SOURCES) == TARGETS
    for target, sources in SOURCES.items():
        assert f"requirements/{target}.lock" in sources
        assert ("trainer/ddpjob_session" in sources) == (target != "operator")
    assert "trainer/ddpjob_ranks/contract.py" in SOURCES["operator"]
    assert [source for sources in SOURCES.values() for source in sources if not (REPOSITORY / source).exists()] == []


def test_the_chart_finds_the_image_for_cpus_where_no_other_trainer_is_loaded() -> None:
    cpu, trainer = "localhost/ddpjob/trainer-cpu:0.1.0", "localhost/ddpjob/trainer:0.1.0"
    assert names("trainer-cpu", ["operator", "trainer-cpu"]) == [cpu, trainer]
    assert names("trainer-cpu", TARGETS) == [cpu]
    assert names("trainer", TARGETS) == [trainer]
