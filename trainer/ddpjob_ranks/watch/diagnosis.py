"""Which rank keeps the others waiting, from what each rank reports about itself. Pure: `watchdog` asks and acts."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final, Self

from ddpjob_ranks.watch.timeline import ORDER, Phase

#: Names of phases in messages, where the phase's own name is not clear enough.
PHASE_NAMES = {
    Phase.AGREE: "the agreement between steps",
    Phase.BACKWARD: "backward or all-reduce",
    Phase.LEAVE: "shutdown",
    Phase.END: "the end",
}

#: What raises the limit in phases that only a session has, or that a session also has.
SESSION_LIMITS = {
    Phase.STEP: "first_step_timeout_seconds (until the first step is done) or step_timeout_seconds of the session",
    Phase.SETUP: "firstStepTimeoutSeconds, or setup_timeout_seconds of the session",
    Phase.EVALUATE: "stepTimeoutSeconds, or evaluation_timeout_seconds of the session",
}

#: Clocks that NTP keeps differ by milliseconds.
CLOCK_SPREAD_SECONDS: Final = 2.0

#: Largest number of ranks, hosts or phases that a message names, since it has to fit into a termination message.
MAX_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """How far a rank has come, as it reports."""

    rank: int
    host: str
    step: int
    """Steps done."""
    phase: Phase
    idle_seconds: float
    """Time without progress."""
    limit_seconds: float
    """Longest time without progress that is allowed in this phase."""
    reported_at_unix_seconds: float
    """When this was so, by the clock of the rank's host."""
    num_collectives: int
    """Collectives of the default group that it has started."""
    num_control_collectives: int = 0
    """The same of the control group, where evaluation, loading and compiling wait."""
    num_started_by_gpu: int = 0
    """Collectives of the default group that its GPU has started, after the host queued them; 0 if that is unknown."""

    num_calls: int = 0
    """Calls of the session before the loop in which all ranks take part."""

    @property
    def position(self) -> tuple[int, int]:
        """Orders ranks by how far they are in the program."""
        return self.step, ORDER[self.phase]

    @property
    def progress(self) -> tuple[tuple[int, int], int]:
        """The same, and within one position by the collectives that they have started."""
        return self.position, self.num_collectives + self.num_control_collectives

    def waits_for(self, ended: Self, *, is_early: bool) -> bool:
        """Whether it has gone on where the other rank has ended, if `is_early` within the loop over steps.

        In the step that the other has left early, it waits if it has started a collective that the other has not.
        """
        if not is_early or self.phase is Phase.LEAVE:
            return self.num_calls > ended.num_calls
        if self.step == ended.step - 1:
            return self.phase is Phase.STEP and self.num_collectives > ended.num_collectives
        return self.step >= ended.step

    @property
    def is_idle(self) -> bool:
        """Whether it has made no progress for longer than is allowed."""
        return self.idle_seconds >= self.limit_seconds

    def __str__(self) -> str:
        return f"in {PHASE_NAMES.get(self.phase, self.phase.value)} after {self.step} steps"

    def to_json(self) -> str:
        """One line; `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "phase": Phase(fields["phase"])})


def diagnose(answers: Mapping[int, RankStatus], last_known: Mapping[int, RankStatus]) -> str | None:
    """One line that names the rank that all others wait for; None while some rank still makes progress.

    Args:
        answers: The status of each rank that answered just now.
        last_known: The last status that each rank published. A rank that is in here only does not respond.

    A rank that does not respond may be busy with code that holds the interpreter's lock. It counts as hung once it has
    made no progress for longer than its own limit.

    A rank that is ahead of another has started at least as many collectives, as the program is the same. One that is
    ahead with fewer has skipped some, and the ranks behind it wait for it.
    """
    if any(not status.is_idle for status in answers.values()):
        return None
    silent = [status for rank, status in last_known.items() if rank not in answers and status.phase is not Phase.END]
    if silent:
        if not all(_is_overdue(status, answers.values()) for status in silent):
            return None
        return f"{unresponsive(silent)}; {_waiting(answers.values())}"
    ranks = sorted(answers.values(), key=lambda status: status.progress)
    if len(ranks) == 1:
        return f"{_name(ranks)} makes no progress: {ranks[0]} for {ranks[0].idle_seconds:.0f} s; {_limit(ranks[0])}"
    skipped = [
        a for a in ranks if any(b.position < a.position and b.num_collectives > a.num_collectives for b in ranks)
    ]
    if 0 < len(skipped) <= len(ranks) // 2:
        most = max(status.num_collectives for status in ranks)
        return (
            f"{_name(skipped)} skipped a collective: {skipped[0]}, ahead of others, but with"
            f" {skipped[0].num_collectives} collectives started instead of {most}; {_waiting(_without(ranks, skipped))}"
        )
    late = [status for status in ranks if status.progress == ranks[0].progress]
    fewest = min(status.num_started_by_gpu for status in ranks)
    stuck = [status for status in ranks if status.num_started_by_gpu == fewest]
    if len(stuck) < len(ranks) and (len(late) == len(ranks) or _without(late, stuck)):
        return _gpu_is_late(ranks, stuck)
    if len(late) == len(ranks):
        return _nobody_is_late(ranks)
    return f"{_name(late)} {'is' if len(late) == 1 else 'are'} late: {late[0]}; {_waiting(_without(ranks, late))}"


def _is_overdue(silent: RankStatus, waiting: Collection[RankStatus]) -> bool:
    """Whether a rank that does not respond has exceeded its own limit, as far as clocks can be compared.

    Ranks that wait in a later step show that it has moved since its report, so the limit of that phase, such as that of
    the first step, does not apply any more.
    """
    age_seconds = median(status.reported_at_unix_seconds for status in waiting) - silent.reported_at_unix_seconds
    limit_seconds = silent.limit_seconds
    if any(status.step > silent.step for status in waiting):
        limit_seconds = min(limit_seconds, max(status.limit_seconds for status in waiting))
    return age_seconds < -CLOCK_SPREAD_SECONDS or silent.idle_seconds + age_seconds >= limit_seconds


def unresponsive(silent: Collection[RankStatus]) -> str:
    """Names the ranks that are stopped or gone."""
    seen = _some(dict.fromkeys(str(status) for status in silent))
    verb = "does" if len(silent) == 1 else "do"
    return f"{_name(silent)} {verb} not respond (stopped, blocked or gone), last seen {seen}"


def _gpu_is_late(ranks: Collection[RankStatus], stuck: Collection[RankStatus]) -> str:
    """All hosts wait for their GPUs, some of which have not come to a collective that others wait in."""
    most = max(status.num_started_by_gpu for status in ranks)
    verb, whose = ("is", "its GPU has") if len(stuck) == 1 else ("are", "their GPUs have")
    fewest = next(iter(stuck)).num_started_by_gpu
    return f"{_name(stuck)} {verb} late: {whose} started {fewest} collectives instead of {most}; {_waiting(ranks)}"


def _nobody_is_late(ranks: Collection[RankStatus]) -> str:
    one = next(iter(ranks))
    names = sorted({status.host for status in ranks})
    hosts = _some(names)
    if one.phase is Phase.CONNECT and len(names) > 1:
        return (
            f"no rank is late: all wait {one}; all of them reach rank 0, but they do not reach each other: check network"
            f" policies and firewalls between {hosts}, and GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        )
    network = f", and the network between {hosts}" if len(names) > 1 else ""
    return (
        f"no rank is late: all wait {one}, with {one.num_collectives} collectives started; check their stacks in the"
        f" logs{network}; {_limit(one)}"
    )


def _limit(status: RankStatus) -> str:
    keys = "firstStepTimeoutSeconds (until the first step is done) or stepTimeoutSeconds"
    keys = SESSION_LIMITS.get(status.phase, keys)
    return f"the limit in this phase is {status.limit_seconds:g} s: if the ranks were working, raise {keys}"


def _waiting(ranks: Iterable[RankStatus]) -> str:
    groups: dict[str, list[int]] = {}
    for status in ranks:
        groups.setdefault(str(status), []).append(status.rank)
    waiting = [f"{_ranks(group)} {'wait' if len(group) > 1 else 'waits'} {where}" for where, group in groups.items()]
    return _some(waiting, "; ") or "no rank waits"


def _name(ranks: Collection[RankStatus]) -> str:
    hosts = _some(dict.fromkeys(status.host for status in ranks))
    return f"{_ranks([status.rank for status in ranks])} (host {hosts})"


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_some(map(str, sorted(ranks)))}"


def _some(names: Iterable[str], separator: str = ", ") -> str:
    """The first names, and how many more there are."""
    everyone = list(names)
    more = f" and {len(everyone) - MAX_NAMED} more" if len(everyone) > MAX_NAMED else ""
    return separator.join(everyone[:MAX_NAMED]) + more


def _without(ranks: Iterable[RankStatus], others: Collection[RankStatus]) -> list[RankStatus]:
    return [status for status in ranks if status not in others]
