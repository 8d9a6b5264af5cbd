"""How ranks find each other: the store on rank 0, with messages about each wait.

Everything that torch would wait for without a message (a name that does not resolve yet, a port that nobody opened, ranks that have
not started) is waited for here, with a line every few seconds and a deadline.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

# torch.distributed's own, which it exports untyped
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from ddpjob_ranks import contract, generation
from ddpjob_ranks.errors import ConfigError, PeersMissingError, ReplacedError
from ddpjob_ranks.launch import open_files
from ddpjob_ranks.launch.identity import Worker

T = TypeVar("T")

#: Longest wait for the other ranks to start, without an operator.
RENDEZVOUS_TIMEOUT = timedelta(minutes=10)
#: In a DDPJob ranks may start days apart, since each pod waits for a node; the deadlines of the job bound that.
RENDEZVOUS_TIMEOUT_IN_A_JOB = timedelta(days=7)
#: A name that does not resolve by then is wrong. In a DDPJob it resolves once the pod of rank 0 runs.
NAME_TIMEOUT = timedelta(minutes=1)
#: A run that has just ended may use the port for a little longer.
PORT_TIMEOUT = timedelta(seconds=20)
#: How long one wait for a key takes. Each timeout costs two warnings of torch's, so it is long, and waited again.
LISTEN = timedelta(days=7)

#: Time between two lines about the same wait.
REPORT_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 0.5
CONNECT_SECONDS = 3.0
#: A store that does not respond by then is asked over another connection, since the name may lead to another one. So long,
#: because thousands of ranks may ask at once.
ANSWER_SECONDS = 30.0


def open_store(worker: Worker) -> Store:
    """The store that all ranks of the attempt share; rank 0 serves it, or torchrun's agent.

    A straggler of an older attempt, which may find the new one at the same address, does not see its keys.

    Raises:
        ConfigError: the master's name does not resolve, outside of a DDPJob, or its port is taken on rank 0.
        PeersMissingError: nobody opened the port in time.
        ReplacedError: another pod has replaced this one.
    """
    if worker.world_size == 1:  # needs no port, so that any number of runs can share a host
        return HashStore()
    open_files.allow(worker.world_size)
    if (current := generation.current(os.environ)) is not None:
        of_attempt, number = open_store_of_attempt(worker, oldest=generation.newest_store(current.stores))
        current.announce(of_attempt, number, node_rank=worker.node_rank, local_rank=worker.local_rank)
    else:
        _wait_for_name(worker)
        # torchrun's agent serves one store to all the times that it starts its ranks (--max-restarts).
        of_attempt = for_attempt(_open_store(worker, rendezvous_timeout()))
    shares_store = os.environ.get(contract.TORCHELASTIC_USE_AGENT_STORE) != "False"
    return PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "") if shares_store else "", of_attempt)


def open_store_of_attempt(worker: Worker, *, oldest: int) -> tuple[Store, int]:
    """What all generations of the attempt share of the store that node 0's launcher serves, and the number of that store.

    `oldest` is the lowest number to accept: a lower one is that of an earlier pod, which has been replaced.

    Raises:
        ConfigError: the master's name does not resolve, outside of a DDPJob.
        PeersMissingError: nobody serves such a store.
        ReplacedError: this is the earlier pod.
    """
    if worker.node_rank == 0 and generation.replacements(os.environ).get(0, 0) < oldest:
        raise ReplacedError(worker.rank)
    _wait_for_name(worker)
    limit, place = rendezvous_timeout(), f"{worker.master_addr}:{worker.master_port}"

    def ask() -> tuple[Store, int | None]:
        store = for_attempt(connected(worker, limit))
        return store, generation.number_of_store(store)

    def probe() -> tuple[Store, int] | str:
        _wait_for_open_port(worker)
        try:
            store, number = _on_thread(ask).result(ANSWER_SECONDS)
        except TimeoutError:
            return _no_answer(worker)
        except RuntimeError as error:
            return f"the connection to {place} was lost ({error})"
        if number is None:
            return f"the store at {place} is not that of this attempt"
        if number < oldest:
            return f"the store at {place} is that of a pod of rank 0 that has been replaced"
        return store, number

    return wait_until(probe, rank=worker.rank, limit=limit)


def number_at_master(worker: Worker) -> int | None:
    """The number of the store that a new connection to the master leads to; None where no store of the attempt responds."""

    def ask() -> int | None:
        socket.create_connection((worker.master_addr, worker.master_port), timeout=CONNECT_SECONDS).close()
        store = connected(worker, timedelta(seconds=CONNECT_SECONDS), host=worker.master_addr)
        return generation.number_of_store(for_attempt(store))

    try:
        return _on_thread(ask).result(3 * CONNECT_SECONDS)
    except (OSError, RuntimeError):
        return None


def for_attempt(store: Store) -> Store:
    """The part of the store that belongs to this attempt."""
    attempt = [os.environ.get(name, "") for name in (contract.DDPJOB_UID, contract.DDPJOB_ATTEMPT)]
    return PrefixStore("/".join(attempt), store)


def _open_store(worker: Worker, deadline: timedelta) -> Store:
    if worker.launcher.endswith("torchrun"):
        store: Store = next(rendezvous("env://", timeout=deadline))[0]
        return store
    serves = worker.rank == 0
    if serves:
        wait_for_free_port(worker)
    else:
        _wait_for_open_port(worker)
    connecting = _on_thread(lambda: connected(worker, deadline, serves=serves))
    wait_until(lambda: None if connecting.done() else _no_answer(worker), rank=worker.rank, limit=deadline)
    if serves:
        _wait_for_open_port(worker)
    return connecting.result()


def connected(worker: Worker, timeout: timedelta, *, serves: bool = False, host: str | None = None) -> TCPStore:
    """A connection to the store on the host of rank 0, or on another one. `serves`: this process serves it, too."""
    # _wait_for_open_port checks whether other ranks reach this one.
    of_rank_0 = "127.0.0.1" if worker.rank == 0 else worker.master_addr
    return TCPStore(
        host or of_rank_0,
        worker.master_port,
        worker.world_size,
        is_master=serves,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )


def _on_thread(call: Callable[[], T]) -> Future[T]:
    """The result to be of what may wait without limit and without a message: torch does for an answer of whatever listens."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001 - whoever waits for the result raises it
            result.set_exception(error)

    threading.Thread(target=run, name="store", daemon=True).start()
    return result


def _no_answer(worker: Worker) -> str:
    return f"the process that listens at {worker.master_addr}:{worker.master_port} does not respond like rank 0"


def rendezvous_timeout() -> timedelta:
    """Longest wait for all ranks to start. Ranks that start again hold their nodes, and wait for one pod at most."""
    again = int(os.environ.get(contract.DDPJOB_GENERATION) or "1") > 1 or contract.DDPJOB_REPLACEMENTS in os.environ
    if again and (seconds := os.environ.get(contract.DDPJOB_REPLACEMENT_SECONDS)):
        return timedelta(seconds=int(seconds))
    return RENDEZVOUS_TIMEOUT_IN_A_JOB if contract.DDPJOB_UID in os.environ else RENDEZVOUS_TIMEOUT


def wait_until(probe: Callable[[], T | str], *, rank: int, limit: timedelta, advice: str = "") -> T:
    """What `probe` returns at last. Until then it returns the reason for the wait, which is printed every few seconds.

    Raises:
        PeersMissingError: it returned a reason for the whole time; the text has the last one.
        ConfigError: the same, where the user has to follow the `advice`.
    """
    start = reported = time.monotonic()
    pause = 0.01
    while isinstance(answer := probe(), str):
        now = time.monotonic()
        if now - start >= limit.total_seconds():
            text = f"rank {rank} on {socket.gethostname()}: timed out after {limit.total_seconds():g} s: {answer}"
            raise ConfigError(f"{text}. {advice}") if advice else PeersMissingError(text)
        if now - reported >= REPORT_SECONDS:
            reported = now
            print(f"rank {rank} has waited {now - start:.0f} s (limit {limit}): {answer}", file=sys.stderr, flush=True)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    return answer


def wait_for_key(store: Store, key: str) -> None:
    """Wait until the store has a key, however long that takes.

    Raises:
        RuntimeError: the store is gone.
    """
    while not store.check([key]):
        with suppress(dist.DistStoreError):  # that was the timeout; a lost connection is a DistNetworkError
            store.wait([key], LISTEN)


def _wait_for_name(worker: Worker) -> None:
    def probe() -> str | None:
        try:
            socket.getaddrinfo(worker.master_addr, worker.master_port, type=socket.SOCK_STREAM)
        except OSError as error:
            return f"the name {worker.master_addr} does not resolve ({error.strerror})"
        return None

    if contract.DDPJOB_UID in os.environ:  # the name is right, and has no address while the pod of rank 0 is lost
        wait_until(probe, rank=worker.rank, limit=rendezvous_timeout())
    else:
        advice = (
            f"Set {contract.MASTER_ADDR} to the address of the host of rank 0 or to a name that every host resolves."
        )
        wait_until(probe, rank=worker.rank, limit=NAME_TIMEOUT, advice=advice)


def wait_for_free_port(worker: Worker) -> None:
    """Wait until rank 0 can open the port of the store.

    Raises:
        ConfigError: another process has it.
    """

    def probe() -> str | None:
        try:
            socket.create_server(("", worker.master_port)).close()
        except OSError as error:
            return f"port {worker.master_port} cannot be opened ({os.strerror(error.errno or 0)})"
        return None

    advice = (
        "Stop the process that uses the port (`ss -tlnp` lists it), or set"
        f" {contract.MASTER_PORT} to a free port, the same on all ranks."
    )
    wait_until(probe, rank=0, limit=PORT_TIMEOUT, advice=advice)


def _wait_for_open_port(worker: Worker) -> None:
    address = (worker.master_addr, worker.master_port)

    def probe() -> str | None:
        try:
            socket.create_connection(address, timeout=CONNECT_SECONDS).close()
        except OSError as error:
            return f"rank 0 does not respond at {address[0]}:{address[1]} ({error.strerror or error})"
        return None

    if worker.rank > 0 or contract.DDPJOB_UID in os.environ:
        wait_until(probe, rank=worker.rank, limit=rendezvous_timeout())
    else:
        advice = f"{contract.MASTER_ADDR} must be an address of the host of rank 0."
        wait_until(probe, rank=0, limit=PORT_TIMEOUT, advice=advice)
