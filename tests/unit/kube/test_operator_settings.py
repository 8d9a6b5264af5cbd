"""The command line of the operator."""

import pytest

from ddpjob_operator.settings import Settings, settings_from


def test_the_image_alone_is_enough() -> None:
    assert settings_from(["--trainer-image", "t:1"]) == Settings(namespaces=(), trainer_image="t:1")


def test_no_namespace_is_the_whole_cluster() -> None:
    assert settings_from(["--trainer-image", "t"]).scopes == (None,)


def test_a_namespace_given_twice_is_watched_once() -> None:
    arguments = ["--trainer-image", "t", "--namespace", "a", "--namespace", "b", "--namespace", "a"]
    assert settings_from(arguments).scopes == ("a", "b")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--trainer-image", "t", "--workers", "0"],
        ["--trainer-image", "t", "--health-port", "65536"],
        ["--trainer-image", "t", "--progress-interval-seconds", "-1"],
        ["--trainer-image", "t", "--progress-interval-seconds", "nan"],
        ["--trainer-image", "t", "--audit-interval-seconds", "0"],
        ["--trainer-image", "t", "--log-format", "xml"],
    ],
)
def test_nonsense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        settings_from(arguments)
