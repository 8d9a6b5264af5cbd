"""Reads the certificates of the system when the first TLS connection needs them.

aiohttp makes two contexts for connections to any server while it is imported. That took 70 ms of the 500 ms of CPU time that
`ddpjob list` needed, although the connection to an API server has a context of its own with the cluster's certificates.
"""

import ssl
from typing import Any


class _LateContext(ssl.SSLContext):
    """A context that reads the certificates of the system when its first connection begins."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """See `ssl.SSLContext`."""
        return self._complete().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """See `ssl.SSLContext`."""
        return self._complete().wrap_socket(*args, **options)

    def _complete(self) -> ssl.SSLContext:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]  # an ordinary context from now on
        _read(self)
        return self


_read = ssl.SSLContext.set_default_verify_paths


def read_certificates_late() -> None:
    """From now on, contexts of this process that use the system's certificates read them late."""

    def set_default_verify_paths(self: ssl.SSLContext) -> None:
        self.__class__ = _LateContext

    ssl.SSLContext.set_default_verify_paths = set_default_verify_paths  # type: ignore[method-assign]  # on purpose
