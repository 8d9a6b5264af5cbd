"""A service of the program's own that cannot be reached, or breaks the connection; argv[1] says how."""

import socket
import struct
import sys
import threading

import requests

server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]


def break_connection() -> None:
    """Accept one connection, and reset it."""
    connection, _ = server.accept()
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


if sys.argv[1] in ("reset", "requests"):
    threading.Thread(target=break_connection, daemon=True).start()
match sys.argv[1]:
    case "reset":
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"x")
        client.recv(1)
    case "requests":
        requests.get(f"http://127.0.0.1:{port}/model", timeout=5)
    case "refused":
        server.close()
        requests.get(f"http://127.0.0.1:{port}/model", timeout=5)
    case "timeout":
        socket.create_connection(("127.0.0.1", port), timeout=0.2).recv(1)
    case "pipe":
        server.close()
        first, second = socket.socketpair()
        second.close()
        first.sendall(b"x")
    case "library":  # a client in C++ whose errors are RuntimeErrors
        raise RuntimeError("curl request to https://bucket failed: Connection reset by peer")
