"""Main containers of pods, and the gangs that they form by what their variables say."""

import asyncio
from dataclasses import dataclass, field

from ddpjob_operator.api import names
from ddpjob_operator.api.names import contract
from ddpjob_ranks.generation import replacements
from simulation.api_server import Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a gang that has met; once the listed fates are used up, all later gangs succeed."""

    kind: str
    """succeed, fail, out_of_memory, killed, bad_config, stop, hang or straggle."""
    after_seconds: float = 20.0
    rank: int = 0
    peers_hang: bool = False
    """Whether the other ranks block for ever, rather than ending with an error of their connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a main container ended."""

    code: int
    finished_at: str
    reason: str = ""
    message: str = ""


#: Who saves checkpoints: uid of the job, attempt, and how often the pod of rank 0 was replaced in it.
Owner = tuple[str, int, int]


@dataclass(slots=True, kw_only=True)
class Container:
    """A main container that has been started."""

    uid: str
    command: list[str]
    variables: dict[str, str]
    """Its environment."""
    exit: Ended | None = None
    has_met: bool = False

    @property
    def job_and_attempt(self) -> tuple[str, int]:
        """Which gang it says that it belongs to."""
        return self.variables[contract.DDPJOB_UID], int(self.variables[contract.DDPJOB_ATTEMPT])

    @property
    def replacement(self) -> int:
        """How often the pod of its rank has been replaced in its attempt."""
        return replacements(self.variables).get(self.rank, 0)

    @property
    def owner(self) -> Owner:
        """The owner of the checkpoint folder, where it is rank 0's."""
        return *self.job_and_attempt, self.replacement

    @property
    def waits_for_pods(self) -> bool:
        """Whether it waits for a lost pod of another rank."""
        return contract.DDPJOB_REPLACEMENT_SECONDS in self.variables

    @property
    def rank(self) -> int:
        """Its node rank."""
        return int(self.variables[contract.NODE_RANK])


def container_of(pod: Body) -> Container:
    """The main container of a pod, just started."""
    main = next(c for c in pod["spec"]["containers"] if c["name"] == names.MAIN_CONTAINER)
    variables = {variable["name"]: variable.get("value", "") for variable in main["env"]}
    return Container(uid=pod["metadata"]["uid"], command=list(main["command"]), variables=variables)


@dataclass(slots=True, kw_only=True)
class Gang:
    """The containers of one attempt."""

    num_nodes: int
    ranks: dict[int, Container] = field(default_factory=dict)
    met_at: float | None = None
    trains_since: float = 0.0
    """When its ranks met last."""
    hangs_at: float | None = None
    waits_since: float | None = None
    """Since when its ranks have waited for a pod that is replaced."""
    num_restarts: int = 0
    """How often its ranks have started again in place, alone or with new pods."""
    joined_replacements: int = 0
    """How often the pods have been replaced whose ranks met last, in sum."""
    coming: asyncio.TimerHandle | None = None
    """What makes its fate come true."""
    fate: Fate = Fate(kind="succeed")

    def has_joined(self, rank: int, replacement: int) -> bool:
        """Whether this pod of the node rank has met the others."""
        container = self.ranks.get(rank)
        return container is not None and container.replacement == replacement and container.has_met
