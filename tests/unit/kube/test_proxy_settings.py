"""aiohttp asks the environment for a proxy in a thread for every request; that is wanted only where one is named."""

import pytest

from ddpjob_operator.transport.access import is_proxied


@pytest.mark.parametrize(
    ("environment", "proxied"),
    [
        ({}, False),
        ({"https_proxy": "http://proxy:3128"}, True),
        ({"http_proxy": "http://proxy:3128"}, False),
        ({"https_proxy": "http://proxy:3128", "no_proxy": ".example.org"}, False),
    ],
)
def test_a_proxy_is_used_as_the_environment_says(
    environment: dict[str, str], proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_proxied("https://api.example.org:6443") is proxied
