"""What limits a run: the share of its time in each part, and the one change that would help most.

Shares are of the training loop after its first step. On a CPU they are host time. On a GPU those of a step are scaled up
from the timed steps (step_timer), where a phase includes gaps in which the device waits for Python; what the device
was not seen to spend is `host`.

Communication is the time from a rank's last gradient to the end of its backward pass, in the timed steps: the part of
the all-reduce that no computation hides. The rank that waits least came last, so its time is the transfer; what others
spend beyond that is waiting for slower ranks.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import mean

import torch

from ddpjob_ranks.watch.timeline import STEP_PHASES, Phase, Timeline


class Part(StrEnum):
    """A part of the loop's time."""

    DATA = "data"
    COMPUTE = "forward and backward"
    COMMUNICATION = "exposed communication"
    WAITING = "waiting for slower ranks"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint stall"
    EVALUATION = "evaluation"
    HOST = "host"


#: By part, the fraction of it that a change without further hardware removes at best, and that change. Half: the thing happens
#: half as often for the same samples.
CHANGES: Mapping[Part, tuple[float, str]] = {
    Part.DATA: (
        1.0,
        "raise dataWorkers (of map-style data sets), or make samples cheaper (packed files, smaller images)",
    ),
    Part.COMMUNICATION: (0.5, "set gradientCompression to bf16, or double globalBatchSize"),
    Part.WAITING: (1.0, "make the ranks equally fast"),
    Part.OPTIMIZER: (0.5, "double globalBatchSize: half as many updates"),
    Part.CHECKPOINT: (0.5, "save half as often (checkpointEverySteps), or to a faster volume"),
    Part.HOST: (0.5, "double globalBatchSize or raise logEverySteps: less to do between steps"),
}
#: Twice as many ranks halve these parts. This is the advice where no other change gains as much as MIN_GAIN.
PARALLEL = (Part.DATA, Part.COMPUTE, Part.EVALUATION)
MIN_GAIN = 0.05


def spent(timeline: Timeline, device: torch.device) -> dict[str, float]:
    """Seconds of this rank's loop in each phase; `exposed` are part of `backward`, `rest` was not seen to be any."""
    total = sum(timeline.seconds[phase] for phase in STEP_PHASES)
    seconds = {phase: timeline.seconds[phase] for phase in STEP_PHASES}
    if device.type == "cuda" and timeline.num_sampled:
        scale = timeline.num_steps / timeline.num_sampled
        seconds = {phase: timeline.sampled[phase] * scale for phase in STEP_PHASES}
        fit = min(1.0, total / max(1e-9, sum(seconds.values())))
        seconds = {phase: fit * value for phase, value in seconds.items()}
    exposed_share = timeline.exposed_seconds / max(1e-9, timeline.sampled[Phase.BACKWARD])
    return {
        **{phase.value: value for phase, value in seconds.items()},
        "exposed": min(1.0, exposed_share) * seconds[Phase.BACKWARD],
        "rest": max(0.0, total - sum(seconds.values())),
        Phase.CHECKPOINT.value: timeline.seconds[Phase.CHECKPOINT],
        Phase.EVALUATE.value: timeline.seconds[Phase.EVALUATE],
    }


def shares(ranks: Sequence[Mapping[str, float]]) -> dict[Part, float]:
    """The share of each part in the mean time of the ranks, each given as `spent` has it. They sum to 1, or all are 0."""
    average = {key: mean(rank[key] for rank in ranks) for key in ranks[0]}
    transfer, agreement = (min(rank[key] for rank in ranks) for key in ("exposed", Phase.AGREE))
    parts = {
        Part.DATA: average[Phase.DATA],
        Part.COMPUTE: average[Phase.FORWARD] + average[Phase.BACKWARD] - average["exposed"],
        Part.COMMUNICATION: transfer,
        Part.WAITING: average["exposed"] - transfer + average[Phase.AGREE] - agreement,
        Part.OPTIMIZER: average[Phase.OPTIMIZER],
        Part.CHECKPOINT: average[Phase.CHECKPOINT],
        Part.EVALUATION: average[Phase.EVALUATE],
        Part.HOST: average[Phase.LOG] + average["rest"] + agreement,
    }
    # While one rank saves, the others wait for it in their next backward pass: the checkpoint causes that wait.
    for part in (Part.WAITING, Part.COMPUTE):
        moved = min(parts[part], max(rank[Phase.CHECKPOINT] for rank in ranks) - parts[Part.CHECKPOINT])
        parts[part] -= moved
        parts[Part.CHECKPOINT] += moved
    total = sum(parts.values())
    return {part: seconds / total if total else 0.0 for part, seconds in parts.items()}


def advice(parts: Mapping[Part, float], *, slowest_rank: int) -> str:
    """The change that would take most off the loop's time, with how much at best."""
    gains = {part: removes * parts[part] for part, (removes, _) in CHANGES.items()}
    part = max(gains, key=lambda part: gains[part])
    gain, (_, message) = gains[part], CHANGES[part]
    if gain < MIN_GAIN:
        gain, message = sum(parts[part] for part in PARALLEL) / 2, "twice as many ranks; nothing else limits it"
    elif part is Part.WAITING:
        message += f": rank {slowest_rank} is the slowest"
    return f"to train faster: {message} (up to {100 * gain:.0f} % faster)"


def report(ranks: Sequence[Mapping[str, float]]) -> str:
    """The text for people: a line of shares and a line of advice."""
    parts = shares(ranks)
    slowest = min(range(len(ranks)), key=lambda rank: ranks[rank]["exposed"])
    listed = ", ".join(f"{part} {100 * share:.1f} %" for part, share in parts.items())
    return f"time after the first step: {listed}\n{advice(parts, slowest_rank=slowest)}"
