"""A service account's token is read again, since the kubelet rotates the file."""

import base64
import datetime
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlparse

import pytest
from kubernetes.aio.config import incluster_config

import testbed
from ddpjob_operator.transport.access import load_access
from ddpjob_operator.transport.client import Client
from ddpjob_operator.transport.errors import UnavailableError
from ddpjob_operator.transport.resources import PODS


class Clock(datetime.datetime):
    """A clock that can be put forward."""

    ahead = datetime.timedelta()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.now(tz) + cls.ahead


async def test_a_rotated_token_is_used_within_a_minute(
    cluster: testbed.ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster.kubectl("create", "serviceaccount", "rotating", "-n", "default")
    cluster.kubectl(
        "create", "clusterrolebinding", "rotating", "--clusterrole=view", "--serviceaccount=default:rotating"
    )
    server = urlparse(cluster.server)
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("expired")
    config = cluster.kubectl.json("config", "view", "--raw", "--flatten")
    ca.write_bytes(base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(datetime=Clock, timedelta=datetime.timedelta))

    access = await load_access()
    async with Client(access.configuration) as client, access.session() as session:
        with pytest.raises(UnavailableError):
            await anext(client.pages(PODS, "default"))
        token.write_text(cluster.kubectl("create", "token", "rotating", "-n", "default"))
        monkeypatch.setattr(Clock, "ahead", datetime.timedelta(seconds=61))
        assert await anext(client.pages(PODS, "default"))
        async with session.get(f"{access.server}{PODS.path('default')}") as answer:  # as kopf asks
            assert answer.status == 200
