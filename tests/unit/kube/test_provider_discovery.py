"""What the operator logs while the scheduling provider that its setting names is not served."""

import asyncio
import logging
from typing import Any

import pytest

from ddpjob_operator.kube.scheduling import discover
from ddpjob_operator.transport.errors import UnavailableError


class Server:
    """An API server that serves the versions of one look after the other, and has failed where there are none."""

    def __init__(self, *looks: list[str] | None) -> None:
        self.looks = list(looks)
        self.times: list[float] = []

    async def group_versions(self, _group: str) -> list[str]:
        self.times.append(asyncio.get_running_loop().time())
        look = self.looks.pop(0)
        if look is None:
            raise UnavailableError("get", "no answer")
        return look

    async def create(self, _resource: Any, _namespace: str | None, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "status": {"allowed": True}}


async def test_what_is_missing_is_logged_once_with_what_is_served_instead(caplog: pytest.LogCaptureFixture) -> None:
    server: Any = Server(*[["v1"]] * 9, None, ["v1"], ["v1", "v1beta1"])
    with caplog.at_level(logging.INFO):
        choice = (await discover(server, "native", [None]))[None]
    assert choice.why == "the cluster serves scheduling.k8s.io/v1beta1"
    missing, failed, again = (record.getMessage() for record in caplog.records)
    assert missing.startswith(
        "the scheduling provider is native, but the cluster does not serve scheduling.k8s.io/v1beta1 or v1alpha2, only v1; "
    )
    assert (again, "no answer" in failed) == (missing, True)
    pauses = [round(after - before) for before, after in zip(server.times, server.times[1:], strict=False)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 1, 1]
