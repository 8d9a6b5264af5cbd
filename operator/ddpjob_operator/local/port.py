"""A TCP port for rank 0 that nobody else gets, although rank 0 opens it only seconds later."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port of the loopback interface, held for as long as the context lasts.

    A socket that is bound with SO_REUSEADDR and does not listen keeps the port from being chosen for anybody else (bind
    to port 0, the local end of a connection), yet lets whoever sets SO_REUSEADDR too, as torch's store does, listen on
    it: Linux sees a conflict only with a listening socket.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port
