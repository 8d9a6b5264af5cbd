"""The operator is killed at random moments of jobs, most of them between two of its own writes."""

import asyncio
import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

import testbed
from support.operator_cluster import Namespace
from support.operator_process import OperatorProcess
from support.scripted_jobs import SCRIPTS, ScriptedJobs
from support.supervised_operator import SupervisedOperator
from testbed.faultproxy import FaultProxy
from testbed.faults import WRITES, LoseAnswer, LoseRequest

SEED = 20
#: Jobs are created one after the other, and at once if the operator was idle at the last kill, so that there are always
#: jobs in early and in late phases.
KILLS_PER_JOB = 5
#: An operator without work is killed after this time.
IDLE_SECONDS = 1.0


MOMENTS: tuple[tuple[type[LoseRequest] | type[LoseAnswer], str], ...] = (
    (LoseRequest, "before a write"),
    (LoseAnswer, "after a write"),
)


class Killer:
    """Kills the operator again and again."""

    def __init__(self, operator: SupervisedOperator, proxy: FaultProxy) -> None:
        self._operator, self._proxy = operator, proxy
        self._chance = random.Random(SEED)  # noqa: S311 no secret
        self.moments: Counter[str] = Counter()

    def kill(self) -> bool:
        """Kill it once, at a random moment. Gives whether it was at work then."""
        num_ended = len(self._operator.exits)
        fault, moment = self._chance.choice(MOMENTS)
        verbs: tuple[str, ...] = WRITES
        skip = self._chance.randrange(5)
        if self._chance.random() < 0.2:
            # The first dozen are those of its start: lists, then watches.
            verbs, skip, moment = (), self._chance.randrange(20), "at any request"
        rule = self._proxy.inject(fault(self._operator.kill), verbs=verbs, skip=skip, times=1)
        self._operator.wait_until_ready(unless_ended=num_ended + 1)
        if not self._operator.wait_for_end(num_ended + 1, IDLE_SECONDS):
            self._operator.kill()
        assert self._operator.wait_for_end(num_ended + 1, 240)
        self._proxy.clear()
        self.moments[moment if rule.num_struck else "idle"] += 1
        return rule.num_struck > 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_kills", [12, pytest.param(100, marks=pytest.mark.nightly)])
async def test_all_jobs_end_as_with_an_operator_that_is_never_killed(
    num_kills: int, namespace: Namespace, cluster: testbed.ControlPlane, proxy: FaultProxy, tmp_path: Path
) -> None:
    jobs = ScriptedJobs(namespace, cluster)
    kinds = itertools.cycle(SCRIPTS)
    with SupervisedOperator(OperatorProcess(proxy.kubeconfig, tmp_path / "log")) as operator:
        killer = Killer(operator, proxy)
        async with jobs.carry_out():
            at_work = False
            for number in range(num_kills):
                if (number % KILLS_PER_JOB == 0 or not at_work) and len(jobs.names) < max(
                    len(SCRIPTS), num_kills // KILLS_PER_JOB
                ):
                    await jobs.apply(next(kinds), number)
                at_work = await asyncio.to_thread(killer.kill)
            print(f"killed {dict(killer.moments)}")
            await jobs.end_as_scripted(seconds=300)
        assert operator.exits == [-9] * num_kills
