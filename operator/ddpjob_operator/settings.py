"""The operator's command line."""

import argparse
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ddpjob_operator.scheduling.discovery import AUTO, SETTINGS

_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_OBJECT_NAME = r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?"


def _this_process() -> str:
    return f"{socket.gethostname()}_{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseName:
    """Namespace and name of the Lease for leader election."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command line, read and checked."""

    namespaces: tuple[str, ...]
    """The watched namespaces; empty is the whole cluster."""
    trainer_image: str
    health_port: int = 8080
    probe_socket: str = ""
    """Path of a socket that serves the same pages to the kubelet's probes; empty: none."""
    workers: int = 32
    progress_interval_seconds: float = 10.0
    audit_interval_seconds: float = 240.0
    job_gauges: int = 0
    """Number of unfinished jobs that have metrics of their own."""
    lease: LeaseName | None = None
    """None: this operator is the only one, without leader election."""
    lease_seconds: int = 18
    identity: str = field(default_factory=_this_process)
    """This process as holder of the Lease; no two processes that run at the same time may share it."""
    scheduling_provider: str = AUTO
    """What schedules the pods of a gang together: one of `discovery.SETTINGS`."""
    makes_network_policies: bool = True
    """Whether jobs get NetworkPolicies, if this operator has the rights."""
    log_level: str = "INFO"
    log_format: Literal["plain", "json"] = "plain"

    @property
    def scopes(self) -> tuple[str | None, ...]:
        """The namespaces to list and watch; None is all of them."""
        return self.namespaces or (None,)


def settings_from(arguments: Sequence[str]) -> Settings:
    """Read the command line. Exits with a message if it is not valid."""
    parser = argparse.ArgumentParser(
        prog="ddpjob-operator",
        description="Runs DDPJobs. Reaches the API server by its service account, else by $KUBECONFIG or ~/.kube/config.",
    )
    parser.add_argument(
        "--namespace",
        dest="namespaces",
        action="append",
        default=[],
        metavar="NS",
        help="watch this namespace only; may be given several times (default: the whole cluster)",
    )
    parser.add_argument("--trainer-image", required=True, metavar="IMAGE", help="image of jobs that do not name one")
    parser.add_argument(
        "--health-port", type=_whole(0, 65535), default=8080, metavar="PORT", help="/livez, /readyz and /metrics"
    )
    parser.add_argument(
        "--probe-socket",
        default="",
        metavar="PATH",
        help="a socket with the same pages, for probes that run in the container: python -m ddpjob_operator.probe PATH /livez",
    )
    parser.add_argument(
        "--workers",
        type=_whole(1, 64),
        default=32,
        metavar="N",
        help="number of jobs that are reconciled at the same time, at most half of them in one namespace",
    )
    parser.add_argument(
        "--progress-interval-seconds",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="seconds between two reads of the log of a running job; the interval grows to a minute within ten minutes; 0: no reads",
    )
    parser.add_argument(
        "--audit-interval-seconds",
        type=_seconds,
        default=240.0,
        metavar="S",
        help="seconds between two comparisons of the caches with the API server",
    )
    parser.add_argument(
        "--job-gauges",
        type=_whole(0, 1000),
        default=0,
        metavar="N",
        help="number of single jobs with gauges (step, loss, ETA, goodput): the newest ones that have not finished (default: 0)",
    )
    parser.add_argument(
        "--lease",
        type=_lease_name,
        metavar="NS/NAME",
        help="the Lease for leader election: the operator that holds it works, the others are standbys (default: no leader election)",
    )
    parser.add_argument(
        "--lease-seconds",
        type=_whole(3, 3600),
        default=18,
        metavar="S",
        help="a standby takes over this long after the leader stops renewing the Lease, which it does every third of this time",
    )
    parser.add_argument(
        "--identity",
        type=_identity,
        default=_this_process(),
        metavar="ID",
        help="name of this process in the Lease, for example the pod's name; a restarted process of the same name keeps the Lease "
        "(default: host name and process id)",
    )
    parser.add_argument(
        "--scheduling-provider",
        choices=SETTINGS,
        default=AUTO,
        help="what schedules the pods of a job together; auto: the first of kueue, volcano, coscheduling and native that the"
        " cluster has and the operator may use (default: auto)",
    )
    parser.add_argument(
        "--network-policies",
        dest="makes_network_policies",
        type=_is_auto,
        default=True,
        metavar="{auto,none}",
        help="auto: create a NetworkPolicy for each job that lets only its own pods connect to its ranks, if this operator has the"
        " right to (default: auto)",
    )
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    parser.add_argument("--log-format", default="plain", choices=("plain", "json"))
    given = parser.parse_args(arguments)
    if given.audit_interval_seconds == 0:
        parser.error("argument --audit-interval-seconds: is 0, expected more than 0")
    return Settings(**{**vars(given), "namespaces": tuple(dict.fromkeys(given.namespaces))})


def _lease_name(text: str) -> LeaseName:
    namespace, _, name = text.partition("/")
    if not (re.fullmatch(_NAMESPACE, namespace) and re.fullmatch(_OBJECT_NAME, name)):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME, such as ddpjob-system/ddpjob-operator")
    return LeaseName(namespace=namespace, name=name)


def _identity(text: str) -> str:
    if not text or text.startswith("$("):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an identity: set the variable in the pod's env from metadata.name"
        )
    return text


def _is_auto(text: str) -> bool:
    if text not in ("auto", "none"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor none")
    return text == "auto"


def _whole(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not within {least} to {most}")
        return value

    return number


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 to 86400")
    return value
