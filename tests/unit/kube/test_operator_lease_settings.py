"""The part of the command line that lets operators take turns."""

import os
import socket

import pytest

from ddpjob_operator.settings import LeaseName, settings_from


def test_without_a_lease_an_operator_works_alone() -> None:
    assert settings_from(["--trainer-image", "t"]).lease is None


def test_a_lease_is_named_with_its_namespace() -> None:
    lease = settings_from(["--trainer-image", "t", "--lease", "system/operator.a"]).lease
    assert lease == LeaseName(namespace="system", name="operator.a")


def test_outside_a_pod_a_process_is_its_host_and_its_number() -> None:
    assert settings_from(["--trainer-image", "t"]).identity == f"{socket.gethostname()}_{os.getpid()}"


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("--lease", "operator", "'operator' is not NAMESPACE/NAME, such as ddpjob-system/ddpjob-operator"),
        ("--lease", "a/b/c", "is not NAMESPACE/NAME"),
        ("--lease", "System/operator", "is not NAMESPACE/NAME"),
        ("--lease", "/operator", "is not NAMESPACE/NAME"),
        ("--lease-seconds", "2", "2 is not within 3 to 3600"),
        ("--identity", "", "is not an identity"),
        ("--identity", "$(POD_NAME)", "is not an identity"),
    ],
)
def test_mistakes_are_named(argument: str, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings_from(["--trainer-image", "t", argument, value])
    assert words in capsys.readouterr().err
