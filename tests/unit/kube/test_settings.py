"""The command line of the operator, and the end of one that cannot know where the API server is."""

import os
import socket
from pathlib import Path

import pytest

from ddpjob_operator.app import run
from ddpjob_operator.settings import LeaseName, Settings, settings_from

IMAGE = ("--trainer-image", "t")


def test_the_image_alone_is_enough() -> None:
    settings = settings_from(IMAGE)
    assert settings == Settings(namespaces=(), trainer_image="t")
    assert settings.scopes == (None,), "the whole cluster"
    assert settings.lease is None, "there is no leader election"
    assert settings.identity == f"{socket.gethostname()}_{os.getpid()}", "outside a pod: the host and the process"


def test_a_namespace_given_twice_is_watched_once() -> None:
    arguments = [*IMAGE, "--namespace", "a", "--namespace", "b", "--namespace", "a"]
    assert settings_from(arguments).scopes == ("a", "b")


def test_a_lease_is_named_with_its_namespace() -> None:
    assert settings_from([*IMAGE, "--lease", "system/operator.a"]).lease == LeaseName(
        namespace="system", name="operator.a"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--trainer-image"),
        ([*IMAGE, "--workers", "0"], "0"),
        ([*IMAGE, "--health-port", "65536"], "65536"),
        ([*IMAGE, "--progress-interval-seconds", "-1"], "-1"),
        ([*IMAGE, "--progress-interval-seconds", "nan"], "nan"),
        ([*IMAGE, "--audit-interval-seconds", "0"], "0"),
        ([*IMAGE, "--log-format", "xml"], "xml"),
        ([*IMAGE, "--lease", "operator"], "'operator' is not NAMESPACE/NAME, such as ddpjob-system/ddpjob-operator"),
        ([*IMAGE, "--lease", "a/b/c"], "is not NAMESPACE/NAME"),
        ([*IMAGE, "--lease", "System/operator"], "is not NAMESPACE/NAME"),
        ([*IMAGE, "--lease", "/operator"], "is not NAMESPACE/NAME"),
        ([*IMAGE, "--lease-seconds", "2"], "2 is not within 3 to 3600"),
        ([*IMAGE, "--identity", ""], "is not an identity"),
        ([*IMAGE, "--identity", "$(POD_NAME)"], "is not an identity"),
    ],
)
def test_a_wrong_value_is_refused_and_named(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit):
        settings_from(arguments)
    assert message in capsys.readouterr().err


async def test_the_operator_ends_and_its_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert await run(Settings(namespaces=(), trainer_image="t", health_port=0)) == 1
    assert "set KUBECONFIG" in caplog.text
