"""One cell of the matrix: bring a job to its phase, inject the fault, and compare the outcome with the expected one."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import testbed
from chaos.faults import INJECTIONS
from chaos.laboratory import NAMESPACE, VOLUME, Laboratory
from chaos.matrix import (
    CHECKPOINT_EVERY_STEPS,
    CHECKPOINT_STEP,
    EPOCHS,
    NUM_RANKS,
    STEADY_STEP,
    TOTAL_STEPS,
    Cell,
    Outcome,
    Phase,
)
from chaos.recovery import recovery, recovery_in_place, steps_lost
from chaos.target import Target
from testbed.errors import TestbedError

REACH_SECONDS = 240
END_SECONDS = 240
#: A kubelet that is back, or a process that ignores SIGTERM, takes some seconds. After an outage of the API server, what belonged to a
#: deleted job was once still there after 60 s.
CLEAN_SECONDS = 180
#: The share that a rank gets of a busy machine follows from it. Two pods and an operator fit on a node of two cores.
CPU_REQUEST = "900m"
#: Training takes about 850 MB a rank; memory beyond the limit is what the out-of-memory fault uses.
MEMORY_LIMIT = "1536Mi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a cell."""

    fault: str
    phase: str
    right: bool
    wrong: str = ""
    """What differs from the expected outcome; empty if nothing does."""
    status: str = ""
    attempts: int = 0
    counted: int = 0
    infrastructure: int = 0
    reason: str | None = None
    message: str = ""
    steps_lost: int = 0
    in_place: bool = False
    """Whether the job has `restart.inPlace: true`."""
    tier: int = 0
    """What started again, as `Outcome.tier`."""
    recovery_seconds: dict[str, float] | None = None
    facts_seconds: dict[str, float] = field(default_factory=dict)
    ended_seconds: dict[str, float] = field(default_factory=dict)
    """When each pod's program was known to have ended, after the fault, by attempt-rank."""
    seconds: float = 0.0
    """The whole cell."""
    seen: list[str] = field(default_factory=list)
    """Phases and reasons of the status, in order."""

    def as_json(self) -> dict[str, Any]:
        """As it is stored in a record."""
        return asdict(self)


def run(laboratory: Laboratory, cell: Cell) -> Result:
    """Run a cell to its end and clean up after it; whatever goes wrong is in the result."""
    began = time.time()
    target = Target(laboratory=laboratory, job=cell.name, in_place=cell.in_place)
    injection = INJECTIONS[cell.fault]
    trouble = ""
    try:
        _apply(target, cell)
        _reach(target, cell.phase)
        target.fault_at = time.time()
        injection.inject(target)
        if cell.phase == Phase.PENDING:
            _open_gate(target)
        else:
            (laboratory.volume / "marks" / cell.name / "injected").touch()
        injection.repair(target)
        testbed.wait_for(f"{cell.name} to end", lambda: target.story.finished, seconds=END_SECONDS, every_seconds=0.1)
        _wait_nothing_runs(target)
    except (TestbedError, AssertionError, OSError) as error:
        trouble = str(error)
    except Exception:  # noqa: BLE001 one broken cell must not cost the others; the record shows it as wrong
        trouble = traceback.format_exc()
    result = _judged(target, cell, time.time() - began, trouble)
    try:
        _remove(target, cell)
    except TestbedError as error:
        result = _judged(target, cell, time.time() - began, f"{trouble} {error}".strip())
    return result


def _apply(target: Target, cell: Cell) -> None:
    injection = INJECTIONS[cell.fault]
    slow_motion = {
        "PYTHONPATH": "/chaos",
        "CHAOS_PHASE": str(cell.phase),
        "CHAOS_HOLD_SECONDS": str(injection.hold_seconds),
        "CHAOS_LATER_STEP_SECONDS": str(injection.later_step_seconds),
        "CHAOS_STEADY_STEP": str(STEADY_STEP),
        "CHAOS_CHECKPOINT_STEP": str(CHECKPOINT_STEP),
        "CHAOS_MARKS": f"/checkpoints/marks/{cell.name}",
    }
    pod_spec: dict[str, Any] = {
        # Longer than a phase is held, so that a rank can save in it.
        "terminationGracePeriodSeconds": 10,
        "containers": [{"name": "trainer", "volumeMounts": [{"name": "chaos", "mountPath": "/chaos"}]}],
        "volumes": [{"name": "chaos", "configMap": {"name": VOLUME}}],
        **injection.pod_spec,
    }
    if cell.phase == Phase.PENDING:
        pod_spec["nodeSelector"] = {_gate(cell.name): "open"}
    spec = {
        "nodes": NUM_RANKS,
        "trainer": {"recipe": "digits", "epochs": EPOCHS, "logEverySteps": 5},
        "checkpoint": {
            "volume": {"persistentVolumeClaim": {"claimName": VOLUME}},
            "everySteps": CHECKPOINT_EVERY_STEPS,
        },
        "env": [{"name": name, "value": value} for name, value in slow_motion.items()],
        "resources": {"requests": {"cpu": CPU_REQUEST, "memory": "256Mi"}, "limits": {"memory": MEMORY_LIMIT}},
        "template": {"spec": pod_spec},
        **injection.spec,
    }
    if cell.in_place:
        spec["restart"] = {"inPlace": True}
        # What a rank that was stopped costs: longer than a phase is held.
        held = int(injection.hold_seconds) + 14
        spec["trainer"] |= {"stepTimeoutSeconds": max(20, held), "firstStepTimeoutSeconds": max(60, held)}
        # The operator would act first if its own limits were as short.
        deadlines = injection.spec.get("deadlines", {})
        spec["deadlines"] = {name: limit for name, limit in deadlines.items() if name == "fullSizeSeconds"}
    metadata = {"name": cell.name, "namespace": NAMESPACE}
    target.laboratory.cluster.kubectl.apply(
        {"apiVersion": "ddpjob.dev/v1beta1", "kind": "DDPJob", "metadata": metadata, "spec": spec}
    )


def _gate(job: str) -> str:
    """The label that a node needs for the pods of this job."""
    return f"chaos.example/{job}"


def _open_gate(target: Target) -> None:
    """Let the pods go to the nodes. They go to the one that is labelled first, which is the one that faults are aimed at."""
    nodes = [node.name for node in reversed(target.laboratory.cluster.nodes)]
    target.laboratory.cluster.kubectl("label", "nodes", *nodes, f"{_gate(target.job)}=open")


def _reach(target: Target, phase: Phase) -> None:
    """Wait until the job is in the phase."""

    def reached() -> bool:
        if target.story.finished:
            raise AssertionError(f"{target.job} ended before it was {phase}: {target.story.status.get('message')}")
        if phase == Phase.PENDING:
            lives = target.story.of(1).values()
            return len(lives) == NUM_RANKS and all(life.unschedulable is not None for life in lives)
        marks = target.laboratory.marks(target.job)
        return all((1, rank) in marks for rank in range(NUM_RANKS)) and (
            marks[1, 0].first("phase") is not None and marks[1, 1].first("rendezvous") is not None
        )

    testbed.wait_for(f"{target.job} to be {phase}", reached, seconds=REACH_SECONDS, every_seconds=0.02)


def _wait_nothing_runs(target: Target) -> None:
    """After the end no pod of the job runs, nor any process of it, whatever the cluster thinks."""
    testbed.wait_for(
        f"all processes of {target.job} to be gone after its end",
        lambda: not target.laboratory.processes(target.story.uid),
        seconds=CLEAN_SECONDS,
        every_seconds=0.2,
    )
    testbed.wait_for(
        f"all pods of {target.job} to have ended",
        lambda: not list(target.story.alive()),
        seconds=CLEAN_SECONDS,
    )


def _judged(target: Target, cell: Cell, seconds: float, trouble: str) -> Result:
    fault_at = target.fault_at
    story, marks = target.story, target.laboratory.marks(target.job)
    status = story.status
    restarts = status.get("restarts", {})
    failures = [*status.get("attempts", []), *([status["failure"]] if "failure" in status else [])]
    seen = Outcome(
        attempts=story.attempt,
        counted=restarts.get("counted", 0),
        infrastructure=restarts.get("infrastructure", 0),
        reason=failures[0]["reason"] if failures else None,
        steps_lost=steps_lost(marks),
        tier=_tier(status, story.attempt),
    )
    done = max((m.step_done() or 0 for m in marks.values()), default=0)
    wrong = [trouble] if trouble else []
    if not trouble and story.phase != "Succeeded":
        wrong.append(f"ended as {story.phase} ({status.get('reason')}: {status.get('message')}), expected Succeeded")
    if not trouble and done != TOTAL_STEPS:
        wrong.append(f"trained {done} steps, expected {TOTAL_STEPS}")
    if not any(_matches(seen, outcome) for outcome in cell.allowed):
        wrong.append(f"{_shown(seen)}; expected {' or '.join(map(_shown, cell.allowed))}")
    parts = recovery(story, marks, fault_at=fault_at, resumed_at=target.resumed_at) if fault_at else None
    if fault_at and cell.in_place and story.attempt == 1:
        parts = recovery_in_place(marks, fault_at=fault_at)
    return Result(
        fault=cell.fault,
        phase=cell.phase,
        right=not wrong,
        wrong="; ".join(wrong),
        status=story.phase,
        attempts=seen.attempts,
        counted=seen.counted,
        infrastructure=seen.infrastructure,
        reason=seen.reason,
        message=failures[0].get("message", "") if failures else "",
        steps_lost=seen.steps_lost,
        in_place=cell.in_place,
        tier=seen.tier or 0,
        recovery_seconds=parts,
        facts_seconds={name: round(value, 2) for name, value in target.facts.items()},
        ended_seconds={
            f"{attempt}-{rank}": round(life.stopped - fault_at, 2)
            for (attempt, rank), life in sorted(story.pods.items())
            if life.stopped is not None
        },
        seconds=round(seconds, 1),
        seen=list(story.seen),
    )


def _matches(seen: Outcome, allowed: Outcome) -> bool:
    exact = (seen.attempts, seen.counted, seen.infrastructure, seen.reason)
    wanted = (allowed.attempts, allowed.counted, allowed.infrastructure, allowed.reason)
    tier_fits = allowed.tier in (None, seen.tier)
    return exact == wanted and tier_fits and seen.steps_lost <= allowed.steps_lost


def _tier(status: Mapping[str, Any], attempt: int) -> int:
    """What started again, by the status at the end."""
    if attempt > 1:
        return 3
    if status.get("restarts", {}).get("podReplacements"):
        return 2
    return int(bool(status.get("progress", {}).get("inPlaceRestarts")))


def _shown(outcome: Outcome) -> str:
    return (
        f"tier {outcome.tier}, {outcome.attempts} attempts, {outcome.counted} counted, {outcome.infrastructure} infrastructure,"
        f" reason {outcome.reason}, steps lost {outcome.steps_lost}"
    )


def _remove(target: Target, cell: Cell) -> None:
    """Leave nothing: job, pods, Service, marks, checkpoints, labels."""
    laboratory = target.laboratory
    laboratory.cluster.kubectl(
        "delete", "ddpjob", target.job, f"--namespace={NAMESPACE}", "--ignore-not-found", "--wait=false"
    )
    testbed.wait_for(
        f"pods and Service of {target.job} to be gone",
        lambda: not laboratory.pods(target.job) and laboratory.service(target.job) is None,
        seconds=CLEAN_SECONDS,
        every_seconds=0.2,
    )
    if cell.phase == Phase.PENDING:
        nodes = [node.name for node in laboratory.cluster.nodes]
        laboratory.cluster.kubectl("label", "nodes", *nodes, f"{_gate(target.job)}-")
    shutil.rmtree(laboratory.volume / "marks" / target.job, ignore_errors=True)
    shutil.rmtree(laboratory.volume / NAMESPACE / target.job, ignore_errors=True)
    laboratory.stories.pop(target.job, None)
