"""The port of rank 0 is reserved until the rank takes it."""

import socket

import pytest

from ddpjob_cli.local.port import reserved_port


def test_the_port_is_kept_from_others_and_open_to_rank_0() -> None:
    with reserved_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as rank_0:
            rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rank_0.bind(("", port))
            rank_0.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass


def test_two_runs_get_two_ports() -> None:
    with reserved_port() as one, reserved_port() as other:
        assert one != other
