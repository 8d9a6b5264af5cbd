import socket
import subprocess
import sys

from testbed import free_ports


def test_a_port_that_one_process_was_given_is_given_to_no_other_and_its_server_can_listen() -> None:
    (port,) = free_ports(1)
    choose = f"from testbed import ports; ports._RANGE = range({port}, {port + 1}); ports.free(1)"
    other = subprocess.run(
        [sys.executable, "-c", choose],
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert f"fewer than 1 free TCP ports from {port} to {port}" in other.stderr
    for address in ("127.0.0.1", ""):
        with socket.create_server((address, port)):
            socket.create_connection(("127.0.0.1", port)).close()
