"""How ranks find rank 0 and its store, and what they report where they do not."""

import select
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore

from ddpjob_ranks import generation
from ddpjob_ranks.errors import ConfigError, PeersMissingError
from ddpjob_ranks.launch import preflight, rendezvous
from ddpjob_ranks.launch.rendezvous import open_store
from support.fakes import fake
from support.workers import worker
from testbed import wait_for


@pytest.fixture
def short_timeouts(monkeypatch):
    """For what never comes."""
    for name in ("NAME_TIMEOUT", "PORT_TIMEOUT", "RENDEZVOUS_TIMEOUT"):
        monkeypatch.setattr(rendezvous, name, timedelta(seconds=0.3))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(rendezvous, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(rendezvous, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(rendezvous, "CONNECT_SECONDS", 0.1)
    monkeypatch.delenv("DDPJOB_UID", raising=False)


@pytest.fixture
def port():
    """A TCP port that is reserved and that nothing listens on."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def test_one_process_alone_needs_no_port_and_no_name():
    store = open_store(worker(master_addr="rank-0.invalid"))
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_master_whose_name_is_unknown(rank, capfd, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(-2, "Name not known")))
    passes = fake(monotonic=lambda: clock[0], sleep=lambda seconds: clock.append(clock.pop() + seconds))
    monkeypatch.setattr(rendezvous, "time", passes)
    with pytest.raises(ConfigError) as refused:
        open_store(worker(rank, 2, master_addr="rank-0.invalid"))
    assert str(refused.value).startswith(
        f"rank {rank} on {socket.gethostname()}: timed out after 0.3 s: the name rank-0.invalid"
    )
    assert "Set MASTER_ADDR to" in str(refused.value)
    assert f"rank {rank} has waited " in capfd.readouterr().err, "the wait is reported, not only its end"


def test_in_a_ddpjob_a_name_may_be_unknown_until_its_pod_has_started(monkeypatch, port):
    monkeypatch.setenv("DDPJOB_UID", "1")
    monkeypatch.setattr(rendezvous, "NAME_TIMEOUT", timedelta(0))
    answers = iter([socket.gaierror(-2, "Name or service not known")] * 2)
    known = socket.getaddrinfo

    def getaddrinfo(*arguments, **keywords):
        if error := next(answers, None):
            raise error
        return known(*arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    store = open_store(worker(0, 2, master_port=port))
    assert not store.check(["key"])


def test_ranks_that_start_again_do_not_take_a_name_without_a_pod_for_a_mistake(monkeypatch):
    """The name does not resolve while the lost pod of rank 0 has no successor. Exit code 2 would end the job for good."""
    set_up_restart(monkeypatch)
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(-2, "Name not known")))
    with pytest.raises(PeersMissingError, match=r"the name rank-0\.invalid does not resolve"):
        rendezvous.open_store_of_attempt(worker(1, 2, master_addr="rank-0.invalid"), oldest=0)


def test_the_successor_of_rank_0_does_not_take_a_name_that_leads_to_an_earlier_pod_for_a_mistake(monkeypatch, port):
    set_up_restart(monkeypatch)
    with pytest.raises(PeersMissingError, match="rank 0 does not respond at"):
        rendezvous.open_store_of_attempt(worker(0, 2, master_port=port), oldest=0)


class Frozen:
    """A store whose process has stopped: its host accepts connections, and nothing responds."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self._accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._accepted.append(self._listening.accept()[0])

    def is_asked(self) -> bool:
        """Whether some connection has brought a request."""
        return any(
            select.select([connection], [], [], 0)[0] and connection.recv(1, socket.MSG_PEEK)
            for connection in self._accepted
        )

    def stop_listening(self) -> None:
        """New connections reach another process, and those that there are stay."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def test_a_store_that_does_not_respond_is_asked_again_until_the_name_leads_to_another_one(port, monkeypatch):
    """The node of rank 0's pod is given up and hangs, so that no connection ends. The next store is found all the same."""
    set_up_restart(monkeypatch, seconds=600)
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 0.1)
    frozen, joined = Frozen(port), []
    search = lambda: joined.append(rendezvous.open_store_of_attempt(worker(1, 2, master_port=port), oldest=0))  # noqa: E731
    threading.Thread(target=search, daemon=True).start()
    wait_for("a request to the store that does not respond", frozen.is_asked, seconds=60)
    frozen.stop_listening()
    served = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    generation.set_up_store(rendezvous.for_attempt(served), {"DDPJOB_REPLACEMENTS": "0:1"})
    wait_for("the other store to be found", lambda: bool(joined), seconds=60)
    assert joined[0][1] == 1


def test_a_look_for_a_newer_store_ends_where_none_responds(port):
    frozen, found = Frozen(port), []
    look = lambda: found.append(rendezvous.number_at_master(worker(1, 2, master_port=port)))  # noqa: E731
    threading.Thread(target=look, daemon=True).start()
    wait_for("the end of the look", lambda: bool(found), seconds=60)
    assert (found, frozen.is_asked()) == ([None], True)


@pytest.mark.parametrize("error", [dist.DistNetworkError("reset"), dist.DistStoreError("lost")])
def test_a_connection_that_is_lost_at_its_start_is_made_again(port, monkeypatch, error):
    """A pod of rank 0 that ends accepts connections until its last moment."""
    set_up_restart(monkeypatch, seconds=600)
    served = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    generation.set_up_store(rendezvous.for_attempt(served), {})
    results = iter([error])

    def connect(*arguments, **keywords):
        if lost := next(results, None):
            raise lost
        return TCPStore(*arguments, **keywords)

    monkeypatch.setattr(rendezvous, "TCPStore", connect)
    assert rendezvous.open_store_of_attempt(worker(1, 2, master_port=port), oldest=0)[1] == 0


def set_up_restart(monkeypatch, seconds=0):
    """Ranks of a job that start again in place, and wait so long, or no longer than one look."""
    for name, value in {"UID": "u1", "GENERATION": "2", "REPLACEMENT_SECONDS": str(seconds)}.items():
        monkeypatch.setenv(f"DDPJOB_{name}", value)


@pytest.mark.usefixtures("short_timeouts")
def test_a_master_that_is_another_host(port):
    with pytest.raises(ConfigError, match="MASTER_ADDR must be an address of the host of rank 0"):
        open_store(worker(0, 2, master_addr="192.0.2.1", master_port=port))  # RFC 5737: an address that nobody has


@pytest.mark.usefixtures("short_timeouts")
def test_a_port_that_another_program_holds(port):
    with socket.create_server(("", port)), pytest.raises(ConfigError) as refused:
        open_store(worker(0, 2, master_port=port))
    assert f"port {port} cannot be opened (Address already in use)" in str(refused.value)
    assert "set MASTER_PORT to a free port" in str(refused.value)


def test_a_port_that_becomes_free_in_time(port):
    server = socket.create_server(("", port))
    release = threading.Timer(0.2, server.close)
    release.start()
    store = open_store(worker(0, 2, master_port=port))
    release.join()
    assert not store.check(["key"])


def test_a_rank_of_an_older_attempt_does_not_count_as_one_of_this_attempt(port, monkeypatch):
    monkeypatch.setenv("DDPJOB_UID", "u1")
    stores = []
    for rank, attempt in ((0, "2"), (1, "1"), (1, "2")):
        monkeypatch.setenv("DDPJOB_ATTEMPT", attempt)
        stores.append(open_store(worker(rank, 2, master_port=port)))
    current, straggler, expected = stores
    straggler.set("rank 1", "of attempt 1")
    assert not current.check(["rank 1"])
    expected.set("rank 1", "of attempt 2")
    assert current.get("rank 1") == b"of attempt 2"


@pytest.mark.usefixtures("short_timeouts")
def test_a_rank_0_that_never_answers(port, capfd):
    with pytest.raises(PeersMissingError, match=f"rank 0 does not respond at 127.0.0.1:{port}"):
        open_store(worker(1, 2, master_port=port))
    assert "rank 1 has waited " in capfd.readouterr().err


@pytest.mark.usefixtures("short_timeouts")
def test_another_program_that_listens_at_the_address_of_rank_0(port, capfd):
    message = f"the process that listens at 127.0.0.1:{port} does not respond like rank 0"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PeersMissingError, match=message):
        open_store(worker(1, 2, master_port=port))
    assert f"rank 1 has waited 0 s (limit 0:00:00.300000): {message}" in capfd.readouterr().err


@pytest.mark.usefixtures("short_timeouts")
def test_ranks_that_have_not_started_are_named(port, capfd):
    rank_0 = worker(0, 4, master_port=port)
    store = open_store(rank_0)
    store.set(preflight.key_of(2), "{}")
    with pytest.raises(PeersMissingError, match=r"2 of 4 ranks have not started: 1, 3$"):
        preflight.check(store, rank_0, {}, torch.device("cpu"), "process")
    assert "2 of 4 ranks have not started: 1, 3" in capfd.readouterr().err


def test_a_key_of_the_store_is_waited_for_again_after_each_time_out(monkeypatch):
    monkeypatch.setattr(rendezvous, "LISTEN", timedelta(milliseconds=20))
    store = HashStore()
    later = threading.Timer(0.2, store.set, ("key", ""))
    later.start()
    rendezvous.wait_for_key(store, "key")
    assert store.check(["key"])
    later.join()
