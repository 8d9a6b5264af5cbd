"""How the operator and the client reach the API server: in a cluster by a service account, otherwise by a kubeconfig.

One configuration serves our own client and kopf's session. The credential is put on each request by a middleware, so a
token that the kubelet rotates is read again (kubernetes.aio does so once a minute) and no session is ever closed for it.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config, refresh_token

logger = logging.getLogger(__name__)

#: Open connections. More than all that can be in flight together (64 actions, 32 workers, 44 reads and writes in the
#: background, a few watches), so that no request waits for a connection behind those of another namespace, which hang.
MAX_CONNECTIONS = 192
_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Address and credentials of the API server."""

    configuration: Configuration
    loader: object | None
    """The kubeconfig loader, whose exec plugin renews its token; None in a cluster."""
    namespace: str
    """The namespace of the kubeconfig's context, or of the service account; `default` where none is set."""

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self.configuration.host)

    def session(self) -> aiohttp.ClientSession:
        """A session of its own with the same TLS and credentials, for kopf."""
        context = RESTClientObject(self.configuration).ssl_context
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, ssl=context),
            trust_env=is_proxied(self.server),
            middlewares=(_Authenticate(self.configuration),),
        )

    async def keep_fresh(self) -> None:
        """Renew the token of the kubeconfig's exec plugin; runs without end, and does nothing for other logins."""
        if self.loader is not None:
            await refresh_token(self.loader, self.configuration)  # type: ignore[no-untyped-call]  # see below
        await asyncio.Event().wait()


async def load_access(*, kubeconfig: str | None = None, context: str | None = None) -> Access:
    """Find the API server.

    Args:
        kubeconfig: Path of a kubeconfig, or several as in $KUBECONFIG, which is the default.
        context: Context of the kubeconfig instead of its current one.

    Raises:
        ValueError: neither a service account nor a kubeconfig can be used.
    """
    configuration = Configuration()
    loader: Any = None
    paths = kubeconfig or os.environ.get("KUBECONFIG")
    # kubernetes.aio.config has no annotations.
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not paths and not context:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            namespace = _service_account_namespace()
        else:
            files = _kubeconfigs(paths)
            if context is not None:
                _check_context(files, context)
            elif len(files) > 1:
                context = _current_context(files)
            # The package reads $KUBECONFIG once, when it is imported.
            loader = await load_kube_config(  # type: ignore[no-untyped-call]
                paths, context=context, client_configuration=configuration
            )
            namespace = loader.current_context["context"].get("namespace")
    except (ConfigException, OSError) as error:
        raise ValueError(
            f"cannot access a Kubernetes API server: {error}; run in a pod with a service account, or set KUBECONFIG"
        ) from error
    configuration.connection_pool_maxsize = MAX_CONNECTIONS
    configuration.client_session_kwargs = {
        "middlewares": (_Authenticate(configuration),),
        "trust_env": is_proxied(configuration.host),
    }
    return Access(configuration=configuration, loader=loader, namespace=namespace or "default")


def _kubeconfigs(paths: str | None) -> list[Path]:
    """The files that exist; OSError if none does, where kubernetes.aio would report a missing key."""
    files = [Path(path).expanduser() for path in (paths or "~/.kube/config").split(os.pathsep) if path]
    existing = [file for file in files if file.exists()]
    if not existing:
        raise OSError(f"there is no kubeconfig at {', '.join(map(str, files)) or 'an empty path'}")
    return existing


def _current_context(files: list[Path]) -> str | None:
    """The current context of several kubeconfigs: the first one counts, as for kubectl; kubernetes.aio takes the last."""
    return next(
        (str(content["current-context"]) for content in _contents(files) if content.get("current-context")), None
    )


def _check_context(files: list[Path], context: str) -> None:
    """ValueError if no kubeconfig has this context; the error of kubernetes.aio does not name those that there are."""
    listed = [item for content in _contents(files) for item in content.get("contexts") or ()]
    known = [str(item["name"]) for item in listed if isinstance(item, dict) and "name" in item]
    if context not in known:
        raise ValueError(
            f"{', '.join(map(str, files))}: found no context {context}; expected one of: {', '.join(known) or '(none)'}; choose one"
            " with --context, or another file with --kubeconfig or KUBECONFIG"
        )


def _contents(files: list[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            yield content


def _service_account_namespace() -> str | None:
    return (
        _SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip() if _SERVICE_ACCOUNT_NAMESPACE.exists() else None
    )


def is_proxied(server: str) -> bool:
    """Whether the environment names a proxy for this URL.

    aiohttp looks for one, and for a netrc file, in a thread of its own for every request, which was a sixth of the
    operator's CPU time, so it only does where there is one.
    """
    url = urlsplit(server)
    return url.scheme in getproxies() and not proxy_bypass(url.hostname or "")


class _Authenticate:
    """Put the current credential on a request; asking for it is what makes kubernetes.aio read the token file again."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        setting = (await self._configuration.auth_settings()).get("BearerToken")
        if setting and setting["value"]:
            request.headers["Authorization"] = setting["value"]
        return await handler(request)
