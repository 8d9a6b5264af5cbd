"""What one plan may cost: each termination message is parsed once, and each pod is looked at a bounded number of times."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ddpjob_operator.api import names
from ddpjob_operator.api.names import Reason
from ddpjob_operator.api.status import DDPJobStatus, Failure, ReplacedPod
from ddpjob_operator.core import records, scheduler_message
from ddpjob_operator.core.failure import log_parsing
from ddpjob_operator.core.model import LogEnd, Membership, Observed, Pod, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import pod_of
from ddpjob_operator.core.times import rfc3339
from ddpjob_operator.scheduling.coscheduling import Coscheduling
from ddpjob_operator.scheduling.interface import Provider
from ddpjob_operator.scheduling.kueue import Kueue
from ddpjob_operator.scheduling.native_v1alpha2 import NativeV1Alpha2
from ddpjob_operator.scheduling.none import NO_PROVIDER
from support.builders import (
    NOW,
    TRACEBACK,
    created,
    ended,
    in_attempt,
    job,
    observed,
    pending,
    pod,
    program,
    running,
    supervised,
)


class Counted(tuple[Pod, ...]):
    """Pods that count how often somebody goes through all of them."""

    times = 0

    def __iter__(self) -> Iterator[Pod]:
        self.times += 1
        return super().__iter__()


class Numbers(list[ReplacedPod]):
    """Records of replaced pods that count how often somebody goes through all of them."""

    times = 0

    def __iter__(self) -> Iterator[ReplacedPod]:
        self.times += 1
        return super().__iter__()


def test_a_termination_message_is_parsed_when_the_record_is_made_and_again_only_if_it_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []

    def parse(text: str) -> LogEnd:
        parsed.append(text)
        return log_parsing.end_of_log(text)

    monkeypatch.setattr(records, "end_of_log", parse)
    known = pod_of(with_message("boom"))
    assert pod_of(with_message("boom"), known).exit == known.exit
    assert parsed == ["boom"]
    pod_of(with_message("bang"), known)
    assert parsed == ["boom", "bang"]


def test_a_plan_parses_no_termination_message(monkeypatch: pytest.MonkeyPatch) -> None:
    of = program(nodes=2)
    seen = replace(running(of), pods=tuple(ended(of, rank, code=1, message=TRACEBACK) for rank in range(2)))
    monkeypatch.delattr(log_parsing, "last_lines")  # every parser of a log begins with it
    assert plan(seen, NOW).status.failure.message == "ValueError: boom"


@pytest.mark.parametrize("provider", [NO_PROVIDER, NativeV1Alpha2(), Coscheduling()], ids=lambda p: p.name)
def test_as_few_messages_are_made_printable_of_a_large_gang_without_nodes_as_of_a_small_one(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a quarter of a second of each plan for 4,096 pods, while the scheduler changes one after the other."""
    shown: list[str] = []

    def show(text: str) -> str:
        shown.append(text)
        return text

    monkeypatch.setattr(scheduler_message, "printable", show)

    def num_shown(nodes: int) -> int:
        shown.clear()
        of = program(nodes=nodes)
        messages = ("0/9 nodes are available: 9 are full", *["0/9 nodes are available"] * (nodes - 1))
        held = [Waiting(reason="Unschedulable", message=message) for message in messages]
        name = "" if provider is NO_PROVIDER else provider.name
        pods = [pending(of, rank, waiting=why, scheduling=name) for rank, why in enumerate(held)]
        assert "0/9 nodes are available" in (plan(observed(of, *pods), NOW, provider).status.message or "")
        return len(shown)

    assert num_shown(64) == num_shown(4)


@pytest.mark.parametrize("kind", ["saved", "stopped with nothing new", "vanished"])
def test_a_plan_goes_through_the_pods_as_often_for_a_large_gang_as_for_a_small_one(kind: str) -> None:
    def times(nodes: int) -> tuple[int, int]:
        seen = observed_end(nodes, kind)
        plan(seen, NOW)
        return seen.pods.times, seen.vanished.times

    assert times(64) == times(4)


def test_a_plan_goes_through_replaced_pods_as_often_where_many_are_lost_at_once() -> None:
    """It took 0.8 s of each plan for a thousand lost pods of 4,096, and each new pod that shows is a plan."""

    def times(nodes: int) -> tuple[int, int, int]:
        lost = range(nodes // 2)
        of = job(
            DDPJobStatus(
                replaced_pods=[ReplacedPod(rank=rank, replacement=1) for rank in lost],
                failure=Failure(attempt=1, reason=Reason.NODE_LOST, time=rfc3339(NOW), replaced=True),
            ),
            nodes=nodes,
            restart={"inPlace": True},
        )
        replaced = Numbers(of.status.replaced_pods)
        of = replace(of, status=of.status.model_copy(update={"replaced_pods": replaced}))
        pods = Counted(supervised(of, rank) for rank in range(len(lost), nodes))
        gone = Counted(replace(supervised(of, rank), replacement=0) for rank in lost)
        made = plan(replace(observed(of, *pods), pods=pods, vanished=gone), NOW)
        assert len(created(made)) == len(lost)
        return pods.times, gone.times, replaced.times

    assert times(64) == times(4)


def test_pods_that_kueue_holds_are_not_compared_with_each_other() -> None:
    """It took a second of each plan for two attempts of 4,096 pods."""
    group = Membership(group="job-1-f3c2", is_held=True, closes=False)

    def times(nodes: int) -> int:
        of = in_attempt(program(nodes=nodes), 2)
        old = (ended(of, rank, code=1, phase="Failed") for rank in range(nodes))
        current = (pod(of, rank, 2) for rank in range(nodes))
        pods = Counted(replace(one, scheduling="kueue", membership=group) for one in (*old, *current))
        plan(replace(observed(of), pods=pods), NOW, Kueue(version="v1beta2"))
        return pods.times

    assert times(64) == times(4)


def observed_end(nodes: int, kind: str) -> Any:
    of = program(nodes=nodes)
    message = "checkpointStep=5" if kind == "saved" else ""
    code = 1 if kind == "vanished" else 75
    pods = Counted(ended(of, rank, code=code, message=message) for rank in range(nodes))
    seen: Observed = running(of)
    is_vanished = kind == "vanished"
    return replace(seen, pods=Counted() if is_vanished else pods, vanished=pods if is_vanished else Counted())


def with_message(text: str) -> dict[str, Any]:
    labels = {names.LABEL_JOB_UID: "u", names.LABEL_ATTEMPT: "1", names.LABEL_RANK: "0"}
    owners = [{"kind": names.KIND, "uid": "u", "controller": True}]
    state = {"terminated": {"exitCode": 1, "message": text}}
    return {
        "metadata": {"name": "job-1-0", "uid": "p", "labels": labels, "ownerReferences": owners},
        "spec": {"containers": [{"name": names.MAIN_CONTAINER}]},
        "status": {"containerStatuses": [{"name": names.MAIN_CONTAINER, "state": state}]},
    }
