"""An operator that cannot know where the API server is."""

from pathlib import Path

import pytest

from ddpjob_operator.app import run
from ddpjob_operator.settings import Settings


async def test_the_operator_ends_and_its_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert await run(Settings(namespaces=(), trainer_image="t", health_port=0)) == 1
    assert "set KUBECONFIG" in caplog.text
