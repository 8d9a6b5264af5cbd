"""Where the time of each rank goes, for `ddpjob top`: pure functions from what the ranks report to rows of a table.

Shares are of the training loop since the first step, or between two reports. The rank that waits least for the all-reduce
came last, so it is the one that the others wait for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from ddpjob.client import RankProgress, RankState

#: Phases in which ranks wait for each other; `exposed` is a part of `backward`.
EXPOSED, AGREE, DATA = "exposed", "agree", "data"
#: Below this share of the time, ranks differ by chance.
MIN_WAITING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One rank. None means that it is not known."""

    rank: int | None
    pod: str
    node: str | None
    step: int | None = None
    phase: str = ""
    seconds_in_phase: float | None = None
    samples_per_second: float | None = None
    """Its part of the samples of all ranks."""
    data_share: float | None = None
    communication_share: float | None = None
    """Share of the time in which it waited for communication and for slower ranks."""
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    waiting_share: float | None = None
    """Of the slowest rank: the share of the time that the others waited for it, on average."""
    is_behind: bool = False
    """Whether it has done fewer steps than another rank."""
    error: str = ""


def speeds(ranks: Sequence[RankProgress], before: Mapping[int, RankState], *, world_size: int) -> list[Speed]:
    """A row for each rank; `before` holds an earlier report of each, if there is one."""
    spans = {rank.state.rank: _since(before.get(rank.state.rank), rank.state) for rank in ranks if rank.state}
    last_step = max((rank.state.step for rank in ranks if rank.state), default=0)
    slowest, waiting = _slowest({rank: span for rank, span in spans.items() if span.has_communication})
    return [
        Speed(rank=rank.rank, pod=rank.pod.name, node=rank.pod.node, error=rank.error)
        if rank.state is None
        else _speed(
            rank,
            rank.state,
            spans[rank.state.rank],
            world_size=world_size,
            waiting=waiting if rank.state.rank == slowest else None,
            is_behind=rank.state.step < last_step,
        )
        for rank in ranks
    ]


def _speed(
    rank: RankProgress, state: RankState, span: RankState, *, world_size: int, waiting: float | None, is_behind: bool
) -> Speed:
    total = _total(span)
    waits = span.seconds.get(EXPOSED, 0.0) + span.seconds.get(AGREE, 0.0)
    return Speed(
        rank=state.rank,
        pod=rank.pod.name,
        node=rank.pod.node,
        step=state.step,
        phase=state.phase,
        seconds_in_phase=state.seconds_in_phase,
        samples_per_second=span.num_samples / world_size / total if total and span.num_samples else None,
        data_share=span.seconds.get(DATA, 0.0) / total if total else None,
        communication_share=waits / total if total and span.has_communication else None,
        memory_bytes=state.memory_bytes,
        gpu_memory_bytes=state.gpu_memory_bytes,
        gpu_memory_total_bytes=state.gpu_memory_total_bytes,
        waiting_share=waiting,
        is_behind=is_behind,
    )


def _since(before: RankState | None, now: RankState) -> RankState:
    """What a rank did between two reports; what it did since its first step where there was no progress in between."""
    if before is None or before.num_samples > now.num_samples or _total(now) <= _total(before):
        return now
    seconds = {name: max(0.0, value - before.seconds.get(name, 0.0)) for name, value in now.seconds.items()}
    samples = now.num_samples - before.num_samples
    return RankState(
        rank=now.rank,
        step=now.step,
        phase=now.phase,
        seconds_in_phase=now.seconds_in_phase,
        num_samples=samples,
        memory_bytes=now.memory_bytes,
        seconds=seconds,
        has_communication=now.has_communication,
    )


def _total(state: RankState) -> float:
    return sum(seconds for name, seconds in state.seconds.items() if name != EXPOSED)


def _slowest(spans: Mapping[int, RankState]) -> tuple[int | None, float]:
    """The rank that waits least, and the share of the time that the others waited for it; None if that is little."""
    waits = {rank: span.seconds.get(EXPOSED, 0.0) + span.seconds.get(AGREE, 0.0) for rank, span in spans.items()}
    total = mean(map(_total, spans.values())) if spans else 0.0
    if len(waits) < 2 or total <= 0:
        return None, 0.0
    slowest = min(waits, key=lambda rank: waits[rank])
    others = mean(seconds - waits[slowest] for rank, seconds in waits.items() if rank != slowest)
    return (slowest, others / total) if others / total >= MIN_WAITING else (None, 0.0)
