"""The matrix: which fault meets a job in which phase, and the outcome that it must have. One table, no behaviour.

A job is two ranks on two nodes that train for `TOTAL_STEPS` steps and save at every `CHECKPOINT_EVERY_STEPS`th. All jobs
must succeed in the end; the cells differ in how many attempts that takes, what counts, and what work is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

NUM_RANKS = 2
EPOCHS = 4
TOTAL_STEPS = 92
CHECKPOINT_EVERY_STEPS = 20
#: A fault may take the save that is under way, and what was trained until the next save would have waited for that one.
MOST_STEPS_LOST = 2 * CHECKPOINT_EVERY_STEPS
#: The step after which the steady phase begins, behind the checkpoint of the first epoch's end at step 23.
STEADY_STEP = 30
#: The checkpoint during which faults are injected; the one before is of step 23.
CHECKPOINT_STEP = 40


class Phase(StrEnum):
    """The phase of the job when the fault is injected."""

    PENDING = "pending"  # both pods exist and have no node
    RENDEZVOUS = "rendezvous"  # rank 1 looks for rank 0, which has not come yet
    FIRST_STEP = "first-step"  # rank 0 is in its first step, rank 1 waits for it in the all-reduce
    STEADY = "steady"  # steps follow each other
    CHECKPOINTING = "checkpointing"  # rank 0 has written the state of step 40, not the manifest that commits it
    EVALUATING = "evaluating"  # rank 0 begins the evaluation after the first epoch, which all ranks take part in
    FINISHING = "finishing"  # all steps are done and evaluated, the last checkpoint may be on its way


class Fault(StrEnum):
    """What is done to the job or its cluster."""

    EXIT = "rank-exits-1"
    KILL = "rank-sigkilled"
    OUT_OF_MEMORY = "rank-out-of-memory"
    STOP = "rank-sigstopped"
    DELETE = "pod-deleted"
    FORCE_DELETE = "pod-force-deleted"
    EVICT = "pod-evicted"
    SERVICE = "service-deleted"
    SUSPEND = "job-suspended"
    EDIT = "spec-edited"
    KUBELET = "kubelet-sigkilled"
    DRAIN = "node-drained"
    OPERATOR = "operator-sigkilled"
    LEADER = "leader-sigkilled"
    API_SERVER = "api-server-restarted"
    DNS = "coredns-stopped"
    # Of jobs that start again in place alone:
    EXCEPTION = "rank-raises"
    BOTH = "both-ranks-exit-1"
    MAIN_PROCESS = "main-process-sigkilled"  # of rank 1's pod: the launcher, which outlives ranks
    FIRST_MAIN_PROCESS = "main-process-0-sigkilled"  # which also keeps the store of the gang
    OPERATOR_AWAY = "operators-stopped"  # and a rank killed by SIGKILL meanwhile
    API_SERVER_AWAY = "api-server-down"  # and a rank killed by SIGKILL meanwhile
    KILL_IN_RESTART = "killed-in-restart"  # rank 0, and rank 1 as soon as the next rank 0 runs
    REPLACED_AGAIN = "replacement-sigkilled"  # the main process of rank 1's pod, and that of the pod that replaces it
    REPLACED_LATER = "replacement-sigkilled-later"  # the same, once the new pod has trained for more than 10 s
    LOST_AT_THE_END = (
        "pod-lost-at-the-end"  # deleted by force, and its container completes in the seconds that it has left
    )
    GROW = "scaled-up"  # to one node more
    SHRINK = "scaled-down"  # to one node
    NO_OTHER_NODE = "node-drained-none-left"  # for a job with minNodes: 1 whose pods share no node


#: These touch more than one job, or need the place of another one, and so are injected while no other job runs.
CLUSTER_WIDE = frozenset(
    {
        Fault.GROW,
        Fault.KUBELET,
        Fault.DRAIN,
        Fault.OPERATOR,
        Fault.LEADER,
        Fault.API_SERVER,
        Fault.DNS,
        Fault.NO_OTHER_NODE,
        Fault.OPERATOR_AWAY,
        Fault.API_SERVER_AWAY,
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome that a cell must have, in addition to success and that nothing of the job runs after it."""

    attempts: int = 1
    counted: int = 0
    infrastructure: int = 0
    reason: str | None = None
    """Why the first attempt failed; None if the status must name no failure."""
    steps_lost: int = 0
    """The most optimizer steps that may have to be done again."""
    tier: int | None = None
    """What started again: 1 the ranks in their pods, 2 one pod, 3 the gang, 0 nothing; None if that does not matter."""

    @property
    def shown(self) -> str:
        """In one line."""
        return (
            f"tier {self.tier}, {self.attempts} attempts, {self.counted} counted, {self.infrastructure} infrastructure,"
            f" reason {self.reason}, steps lost {self.steps_lost}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault: its outcome in every phase, except for exceptions. Any one of several outcomes is right."""

    usual: tuple[Outcome, ...]
    exceptions: Mapping[Phase, tuple[Outcome, ...]] = field(default_factory=dict)
    not_applicable: Mapping[Phase, str] = field(default_factory=dict)
    """Phases in which the fault makes no sense, and why."""


def _counted(reason: str) -> tuple[Outcome, ...]:
    """The gang starts again from the last checkpoint, and that counts."""
    return (Outcome(attempts=2, counted=1, reason=reason, steps_lost=MOST_STEPS_LOST),)


def _infrastructure(reason: str) -> tuple[Outcome, ...]:
    """The gang starts again from the last checkpoint, and that does not count."""
    return (Outcome(attempts=2, infrastructure=1, reason=reason, steps_lost=MOST_STEPS_LOST),)


def _saved(reason: str) -> tuple[Outcome, ...]:
    """SIGTERM reached the program in time: it saved, and the next attempt continues where it stopped."""
    return (Outcome(attempts=2, infrastructure=1, reason=reason),)


UNDISTURBED = (Outcome(),)
NO_PROCESS = "no rank has a process yet"


def _taken_away(reason: str) -> Row:
    """A pod is asked to go, with a grace.

    Before training there is no step to lose and SIGTERM ends the program. In the end there is nothing left to save and
    the program ends well within its grace: the job is done if the operator sees that before the pod is gone, else the
    pod is missing.
    """
    return Row(
        usual=_saved(reason),
        exceptions={Phase.FINISHING: (*UNDISTURBED, *_saved(reason))},
    )


MATRIX: Mapping[Fault, Row] = {
    Fault.EXIT: Row(usual=_counted("ProgramError"), not_applicable={Phase.PENDING: NO_PROCESS}),
    Fault.KILL: Row(usual=_counted("Killed"), not_applicable={Phase.PENDING: NO_PROCESS}),
    Fault.OUT_OF_MEMORY: Row(usual=_counted("OutOfMemory"), not_applicable={Phase.PENDING: NO_PROCESS}),
    Fault.STOP: Row(usual=_counted("Hung"), not_applicable={Phase.PENDING: NO_PROCESS}),
    Fault.DELETE: _taken_away("PodDeleted"),
    Fault.FORCE_DELETE: Row(usual=_infrastructure("PodDeleted")),
    Fault.EVICT: _taken_away("Evicted"),
    Fault.SERVICE: Row(usual=UNDISTURBED),
    Fault.SUSPEND: Row(usual=(Outcome(attempts=2),)),
    Fault.EDIT: Row(usual=UNDISTURBED),
    Fault.KUBELET: Row(usual=_infrastructure("NodeLost")),
    Fault.DRAIN: Row(
        usual=_saved("NodeDrained"),
        exceptions={
            Phase.PENDING: UNDISTURBED,  # no pod is on the node yet, and none comes there
            Phase.FINISHING: (*UNDISTURBED, *_saved("NodeDrained")),
        },
    ),
    Fault.OPERATOR: Row(usual=UNDISTURBED),
    Fault.LEADER: Row(usual=UNDISTURBED),
    Fault.API_SERVER: Row(usual=UNDISTURBED),
    Fault.DNS: Row(usual=UNDISTURBED),
}


IN_PLACE = (Outcome(tier=1),)


def _replaced(reason: str, **counters: int) -> tuple[Outcome, ...]:
    """One pod is replaced in the same attempt."""
    return (Outcome(tier=2, reason=reason, **counters),)


ONE_PHASE = "what this row is about comes after the first loss, so one phase is enough"

#: Not all pods of the gang may be known to have run.
EARLY = (Phase.RENDEZVOUS, Phase.FIRST_STEP)


def _gang(reason: str, **counters: int) -> tuple[Outcome, ...]:
    """The whole gang starts again after the loss of one pod."""
    return (Outcome(attempts=2, tier=3, reason=reason, **counters),)


def _replaced_once_it_ran(reason: str, *, in_doubt: tuple[Phase, ...] = EARLY, **counters: int) -> Row:
    """A pod is lost, and replaced alone; `in_doubt` the gang may start again instead."""
    either = (*_replaced(reason, **counters), *_gang(reason, **counters))
    return Row(
        usual=_replaced(reason, **counters),
        exceptions=dict.fromkeys(in_doubt, either),
        not_applicable={Phase.PENDING: NO_PROCESS},
    )


def _taken_away_once_it_runs(
    reason: str, *, pending: tuple[Outcome, ...] | None = None, in_the_end: tuple[Outcome, ...] = ()
) -> Row:
    """The cluster or somebody takes a pod away, which is replaced alone, without a step lost and without being counted.

    If it is asked to stop, all ranks save before it ends; otherwise rank 0 still has the state. A gang that has never run starts again
    as a whole. In the end the other rank may be done before the new pod joins it; `in_the_end` the lost one may be, too.
    """
    row = _replaced_once_it_ran(reason, in_doubt=(*EARLY, Phase.FINISHING), infrastructure=1)
    exceptions = {
        **row.exceptions,
        Phase.PENDING: _gang(reason, infrastructure=1) if pending is None else pending,
        Phase.FINISHING: (*row.exceptions[Phase.FINISHING], *in_the_end),
    }
    return Row(usual=row.usual, exceptions=exceptions)


def _once_it_runs(outcomes: tuple[Outcome, ...] = IN_PLACE) -> Row:
    """In each phase in which there are processes; by default the ranks start again within their pods, and no step is lost."""
    return Row(usual=outcomes, not_applicable={Phase.PENDING: NO_PROCESS})


#: The pods are asked to go, save what they have done, and the next attempt has another number of them. That is no failure.
RESIZED = Row(
    usual=(Outcome(attempts=2, tier=3),),
    exceptions={Phase.FINISHING: (*UNDISTURBED, Outcome(attempts=2, tier=3))},
)

#: The same of jobs with `restart.inPlace: true`. A rank whose limit of memory is reached takes its pod along, where the kernel
#: ends all processes of a container together.
MATRIX_IN_PLACE: Mapping[Fault, Row] = {
    Fault.EXIT: _once_it_runs(),
    Fault.EXCEPTION: _once_it_runs(),
    Fault.KILL: _once_it_runs(),
    Fault.OUT_OF_MEMORY: Row(
        usual=(*IN_PLACE, *_replaced("OutOfMemory", counted=1)),
        exceptions={
            phase: (*IN_PLACE, *_replaced("OutOfMemory", counted=1), *_counted("OutOfMemory"))
            for phase in (Phase.RENDEZVOUS, Phase.FIRST_STEP)
        },
        not_applicable={Phase.PENDING: NO_PROCESS},
    ),
    Fault.STOP: Row(
        usual=IN_PLACE,
        not_applicable={
            Phase.PENDING: NO_PROCESS,
            Phase.RENDEZVOUS: "until the ranks have met, only the deadlines of the job bound their waits, as in the other table",
        },
    ),
    Fault.BOTH: _once_it_runs((Outcome(tier=1, steps_lost=MOST_STEPS_LOST),)),
    Fault.MAIN_PROCESS: _replaced_once_it_ran("Killed", counted=1),
    # A step that rank 0 alone has completed is done again.
    Fault.FIRST_MAIN_PROCESS: _replaced_once_it_ran("Killed", counted=1, steps_lost=1),
    Fault.DELETE: _taken_away_once_it_runs("PodDeleted", in_the_end=UNDISTURBED),
    Fault.EVICT: _taken_away_once_it_runs("Evicted", in_the_end=UNDISTURBED),
    Fault.FORCE_DELETE: _replaced_once_it_ran("PodDeleted", in_doubt=(*EARLY, Phase.FINISHING), infrastructure=1),
    # The others end with exit code 0, so that nobody waits for the new pod; or a kubelet was fast, and they do.
    Fault.LOST_AT_THE_END: Row(
        usual=(*_saved("PodDeleted"), *_replaced("PodDeleted", infrastructure=1)),
        not_applicable={phase: "the other ranks go on" for phase in Phase if phase != Phase.FINISHING},
    ),
    Fault.KILL_IN_RESTART: _once_it_runs(),
    # Two failures in a row: no progress was reported between them, or both came within 10 s of running. The next restart waits, and the
    # whole gang with it. (If a busy machine takes more than 10 s to the first, and progress is read right after it, tier 2 is as right.)
    Fault.REPLACED_AGAIN: _once_it_runs(_gang("Killed", counted=2, steps_lost=MOST_STEPS_LOST)),
    # Not in a row, so that only this pod is replaced, as often as that happens.
    Fault.REPLACED_LATER: Row(
        usual=_replaced("Killed", counted=2),
        not_applicable={phase: ONE_PHASE for phase in Phase if phase != Phase.STEADY},
    ),
    # The node that is left takes both pods, since a job only prefers to have a node for each. The other one comes back once the job trains.
    Fault.KUBELET: _taken_away_once_it_runs("NodeLost"),
    Fault.DRAIN: _taken_away_once_it_runs("NodeDrained", pending=UNDISTURBED, in_the_end=UNDISTURBED),
    # Where it may not take both, rank 0 waits for a new pod that finds no node, and after fullSizeSeconds an attempt of one pod continues
    # from the checkpoint that all ranks saved for the drain.
    Fault.NO_OTHER_NODE: Row(
        usual=_gang("NodeDrained", infrastructure=1),
        not_applicable={phase: ONE_PHASE for phase in Phase if phase != Phase.STEADY},
    ),
    Fault.GROW: RESIZED,
    Fault.SHRINK: RESIZED,
    Fault.OPERATOR_AWAY: _once_it_runs(),
    Fault.API_SERVER_AWAY: _once_it_runs(),
}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One fault in one phase."""

    fault: Fault
    phase: Phase
    in_place: bool = False
    """Whether the job has `restart.inPlace: true`."""

    @property
    def name(self) -> str:
        """The job's name; also the cell's in records."""
        return f"{'again-' if self.in_place else ''}{self.fault}-{self.phase}"

    @property
    def allowed(self) -> tuple[Outcome, ...]:
        """The outcomes that are right; none if the cell makes no sense."""
        row = self._row
        return () if self.phase in row.not_applicable else row.exceptions.get(self.phase, row.usual)

    @property
    def why_not(self) -> str:
        """Why the cell makes no sense."""
        return self._row.not_applicable.get(self.phase, "")

    @property
    def _row(self) -> Row:
        return (MATRIX_IN_PLACE if self.in_place else MATRIX)[self.fault]


CELLS = (
    *(Cell(fault, phase) for fault in MATRIX for phase in Phase if phase != Phase.EVALUATING),
    *(Cell(fault, phase, in_place=True) for fault in MATRIX_IN_PLACE for phase in Phase),
)
