"""Which rank keeps the others waiting, from what each says of itself. Pure: `watchdog` asks and acts."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Self

from ddpjob_ranks.watch.timeline import ORDER, Phase

WORDS = {
    Phase.AGREE: "the agreement between steps",
    Phase.BACKWARD: "backward or all-reduce",
    Phase.PART: "parting",
    Phase.END: "the end",
}

#: Of ranks, hosts or places to be told, so many are named. A verdict has to fit into a termination message.
MAX_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank is."""

    rank: int
    host: str
    step: int
    """Steps done."""
    phase: Phase
    idle_seconds: float
    limit_seconds: float
    """How long it may be idle in this phase."""
    num_collectives: int
    """Collectives of the default group that it has begun."""
    num_control_collectives: int = 0
    """The same of the control group, where evaluation, loading and compiling wait."""

    @property
    def position(self) -> tuple[int, int]:
        """Which of two places comes later in the program."""
        return self.step, ORDER[self.phase]

    @property
    def progress(self) -> tuple[tuple[int, int], int]:
        """The same, and in one place which of two ranks has come further."""
        return self.position, self.num_collectives + self.num_control_collectives

    def __str__(self) -> str:
        return f"in {WORDS.get(self.phase, self.phase.value)} after {self.step} steps"

    def to_json(self) -> str:
        """One line; `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "phase": Phase(fields["phase"])})


def of(answers: Mapping[int, Place], last_seen: Mapping[int, Place]) -> str | None:
    """One line that names the culprit; None while some rank has been idle for less than its limit.

    Args:
        answers: The places of the ranks that answered just now.
        last_seen: Of every rank its place as last heard of, however long ago. A rank that is in one only is silent.

    A rank that is ahead of another has begun at least as many collectives, as the program is the same. One that is ahead
    with fewer has skipped some, and the ranks behind it wait for it.
    """
    if any(place.idle_seconds < place.limit_seconds for place in answers.values()):
        return None
    silent = [place for rank, place in last_seen.items() if rank not in answers and place.phase is not Phase.END]
    if silent:
        return f"{does_not_answer(silent)}; {_rest(answers.values())}"
    places = sorted(answers.values(), key=lambda place: place.progress)
    if len(places) == 1:
        return f"{_name(places)} makes no progress: {places[0]} for {places[0].idle_seconds:.0f} s{_allowed(places[0])}"
    skipped = [
        a for a in places if any(b.position < a.position and b.num_collectives > a.num_collectives for b in places)
    ]
    if 0 < len(skipped) <= len(places) // 2:
        most = max(place.num_collectives for place in places)
        return (
            f"{_name(skipped)} skipped a collective: {skipped[0]}, ahead of others, but with"
            f" {skipped[0].num_collectives} collectives begun, not {most}; {_rest(_without(places, skipped))}"
        )
    late = [place for place in places if place.progress == places[0].progress]
    if len(late) == len(places):
        names = sorted({place.host for place in places})
        hosts = _some(names)
        if places[0].phase is Phase.CONNECT and len(names) > 1:
            return (
                f"no rank is late: all wait {places[0]}; they have met at rank 0 and do not reach each other: look at"
                f" network policies and firewalls between {hosts}, and at GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
            )
        return (
            f"no rank is late: all wait {places[0]}, with {places[0].num_collectives} collectives begun;"
            f" look at their stacks{f', and at the network between {hosts}' if len(names) > 1 else ''}{_allowed(places[0])}"
        )
    return f"{_name(late)} {'is' if len(late) == 1 else 'are'} late: {late[0]}; {_rest(_without(places, late))}"


def does_not_answer(silent: Collection[Place]) -> str:
    """The words for ranks that are stopped or gone."""
    seen = _some(dict.fromkeys(str(place) for place in silent))
    return f"{_name(silent)} {'does' if len(silent) == 1 else 'do'} not answer (stopped, blocked or gone), last seen {seen}"


def _allowed(place: Place) -> str:
    keys = "firstStepTimeoutSeconds (until the first step is done) or stepTimeoutSeconds"
    return f"; {place.limit_seconds:g} s are allowed here: where that is work and no standstill, raise {keys}"


def _rest(places: Iterable[Place]) -> str:
    groups: dict[str, list[int]] = {}
    for place in places:
        groups.setdefault(str(place), []).append(place.rank)
    waiting = [f"{_ranks(ranks)} {_verb(ranks)} {where}" for where, ranks in groups.items()]
    return _some(waiting, "; ") or "no rank waits"


def _name(places: Collection[Place]) -> str:
    hosts = _some(dict.fromkeys(place.host for place in places))
    return f"{_ranks([place.rank for place in places])} (host {hosts})"


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_some(map(str, sorted(ranks)))}"


def _some(names: Iterable[str], separator: str = ", ") -> str:
    """The first names, and how many more there are."""
    everyone = list(names)
    more = f" and {len(everyone) - MAX_NAMED} more" if len(everyone) > MAX_NAMED else ""
    return separator.join(everyone[:MAX_NAMED]) + more


def _verb(ranks: Collection[int]) -> str:
    return "wait" if len(ranks) > 1 else "waits"


def _without(places: Iterable[Place], others: Collection[Place]) -> list[Place]:
    return [place for place in places if place not in others]
