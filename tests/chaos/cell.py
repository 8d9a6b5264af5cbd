"""One cell of the matrix: bring a job to its phase, inject the fault, and compare the outcome with the expected one."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import testbed
from chaos.faults import INJECTIONS
from chaos.laboratory import NAMESPACE, VOLUME, Laboratory
from chaos.marks import seconds_to_train, steps_lost
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

    outcome: Outcome
    wrong: str = ""
    """What differs from the expected outcome; empty if nothing does."""
    trains_again_seconds: float | None = None
    """From the fault, or from the order to resume, until all ranks had done a step; None if none had to start again."""
    seen: list[str] = field(default_factory=list)
    """Phases and reasons of the status, in order."""


def run(laboratory: Laboratory, cell: Cell) -> Result:
    """Run a cell to its end and clean up after it; whatever goes wrong is in the result."""
    target = Target(laboratory=laboratory, name=cell.name, in_place=cell.in_place)
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
        testbed.wait_for(f"{cell.name} to end", lambda: target.look().finished, seconds=END_SECONDS, every_seconds=0.1)
        _wait_nothing_runs(target)
    except (TestbedError, AssertionError, OSError) as error:
        trouble = str(error)
    except Exception:  # noqa: BLE001 one broken cell must not cost the others; the record shows it as wrong
        trouble = traceback.format_exc()
    result = _judged(target, cell, trouble)
    try:
        _remove(target, cell)
    except TestbedError as error:
        result = _judged(target, cell, f"{trouble} {error}".strip())
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
    target.laboratory.cluster.kubectl("label", "nodes", *nodes, f"{_gate(target.name)}=open")


def _reach(target: Target, phase: Phase) -> None:
    """Wait until the job is in the phase."""

    def reached() -> bool:
        if target.look().finished:
            raise AssertionError(f"{target.name} ended before it was {phase}: {target.status.get('message')}")
        if phase == Phase.PENDING:
            pods = target.pods(1)
            return len(pods) == NUM_RANKS and all(_is_unschedulable(pod.body) for pod in pods.values())
        marks = target.marks()
        return all((1, rank) in marks for rank in range(NUM_RANKS)) and (
            marks[1, 0].first("phase") is not None and marks[1, 1].first("rendezvous") is not None
        )

    testbed.wait_for(f"{target.name} to be {phase}", reached, seconds=REACH_SECONDS)


def _is_unschedulable(pod: Mapping[str, Any]) -> bool:
    return any(c.get("reason") == "Unschedulable" for c in pod.get("status", {}).get("conditions", []))


def _wait_nothing_runs(target: Target) -> None:
    """After the end no pod of the job runs, nor any process of it, whatever the cluster thinks."""
    what = f"all processes of {target.name} to be gone after its end"
    testbed.wait_for(what, lambda: not target.processes(), seconds=CLEAN_SECONDS)
    testbed.wait_for(f"all pods of {target.name} to have ended", lambda: not target.runs(), seconds=CLEAN_SECONDS)


def _judged(target: Target, cell: Cell, trouble: str) -> Result:
    status, marks = target.status, target.marks()
    restarts = status.get("restarts", {})
    failures = [*status.get("attempts", []), *([status["failure"]] if "failure" in status else [])]
    seen = Outcome(
        attempts=target.attempt,
        counted=restarts.get("counted", 0),
        infrastructure=restarts.get("infrastructure", 0),
        reason=failures[0]["reason"] if failures else None,
        steps_lost=steps_lost(marks),
        tier=_tier(status, target.attempt),
    )
    done = max((m.step_done() or 0 for m in marks.values()), default=0)
    wrong = [trouble] if trouble else []
    if not trouble and target.phase != "Succeeded":
        wrong.append(f"ended as {target.phase} ({status.get('reason')}: {status.get('message')}), expected Succeeded")
    if not trouble and done != TOTAL_STEPS:
        wrong.append(f"trained {done} steps, expected {TOTAL_STEPS}")
    if not any(_matches(seen, outcome) for outcome in cell.allowed):
        wrong.append(f"{seen.shown}; expected {' or '.join(outcome.shown for outcome in cell.allowed)}")
    seconds = seconds_to_train(marks, target.fault_at) if target.fault_at and seen.tier else None
    return Result(outcome=seen, wrong="; ".join(wrong), trains_again_seconds=seconds, seen=target.seen)


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


def _remove(target: Target, cell: Cell) -> None:
    """Leave nothing: job, pods, Service, marks, checkpoints, labels."""
    laboratory = target.laboratory
    target.kubectl("delete", "ddpjob", target.name, "--ignore-not-found", "--wait=false")
    testbed.wait_for(
        f"pods and Service of {target.name} to be gone",
        lambda: not laboratory.pods(target.name) and laboratory.service(target.name) is None,
        seconds=CLEAN_SECONDS,
    )
    if cell.phase == Phase.PENDING:
        nodes = [node.name for node in laboratory.cluster.nodes]
        laboratory.cluster.kubectl("label", "nodes", *nodes, f"{_gate(target.name)}-")
    for folder in ("marks", NAMESPACE):
        shutil.rmtree(laboratory.volume / folder / target.name, ignore_errors=True)
