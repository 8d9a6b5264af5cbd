"""A real S3 server, reached through a proxy that can hold a request and refuse connections.

The server listens on a Unix socket and the proxy on a port that the kernel chooses and the proxy keeps.
"""

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.processes import DEADLINE_SECONDS
from testbed import tools, wait_for

BUCKET = "bucket"
KEY, SECRET = "test-key", "test-secret"


@dataclass(kw_only=True)
class S3Server:
    """The server, its proxy, and the folder with its objects."""

    folder: Path
    listener: socket.socket
    down: bool = False
    """Whether connections are closed at once."""
    held: re.Pattern[bytes] | None = None
    """Requests that match are not passed on."""
    holding: threading.Event = field(default_factory=threading.Event)
    """Set once a request is held."""
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        """The variables of a client."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.listener.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    @property
    def objects(self) -> set[str]:
        """The names of all complete objects."""
        return {
            str(path.relative_to(self.folder / BUCKET))
            for path in (self.folder / BUCKET).rglob("*")
            if path.is_file() and ".sgwtmp" not in path.parts
        }

    @property
    def num_unfinished_uploads(self) -> int:
        """Multipart uploads that were begun and not completed."""
        return len(list((self.folder / BUCKET / ".sgwtmp/multipart").glob("*/*")))

    def hold(self, pattern: bytes) -> None:
        """Pass on no request that matches, from now on."""
        self.holding.clear()
        self.held = re.compile(pattern)

    def release(self) -> None:
        """Pass on every request of new connections."""
        self.held = None

    def refuse(self) -> None:
        """Close all connections, and new ones at once."""
        self.down = True
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def accept(self, server: Path) -> None:
        """On a thread: connect each client with the server."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # closed
                return
            if self.down:
                client.close()
                continue
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(str(server))
            self.connections += [client, upstream]
            threading.Thread(target=self.carry, args=(client, upstream), daemon=True).start()
            threading.Thread(target=self.carry, args=(upstream, client), daemon=True).start()

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        """On a thread: one direction of a connection."""
        with suppress(OSError):
            while data := source.recv(2**20):
                if self.held and self.held.search(data):
                    self.holding.set()
                    return  # the client waits for an answer until it ends
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def started(folder: Path) -> Iterator[S3Server]:
    """Run the server with one empty bucket until the end of the block."""
    objects, metadata, address = folder / "objects", folder / "metadata", folder / "server"
    (objects / BUCKET).mkdir(parents=True)
    metadata.mkdir()
    # File systems differ in extended attributes, so metadata are in files of their own.
    command: list[str | Path] = [
        tools.path("versitygw"),
        "--quiet",
        "--port",
        address,
        "posix",
        "--sidecar",
        metadata,
        objects,
    ]
    environ = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    log = folder / "log"
    with log.open("wb") as output, subprocess.Popen(command, env=environ, stdout=output, stderr=output) as process:
        try:

            def listens() -> bool:
                assert process.poll() is None, log.read_text()
                with socket.socket(socket.AF_UNIX) as probe:
                    return probe.connect_ex(str(address)) == 0

            wait_for("the S3 server to listen", listens, seconds=DEADLINE_SECONDS)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                server = S3Server(folder=objects, listener=listener)
                threading.Thread(target=server.accept, args=(address,), daemon=True).start()
                yield server
                server.refuse()
        finally:
            process.kill()
