"""Reserves a TCP port for rank 0, which starts to listen on it seconds later."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port of the loopback interface, which is reserved inside the context.

    The port is bound by a socket that has SO_REUSEADDR and does not listen. Linux then does not choose the port for
    other sockets (bind to port 0, the local end of a connection), but a socket that also sets SO_REUSEADDR, as torch's
    store does, can listen on it, because only listening sockets conflict.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port
