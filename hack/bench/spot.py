"""How much of a pool of preempted nodes a job uses: of a fixed size, with minNodes, and with replaced pods.

The decisions are those of the operator: its `plan()` is asked whenever something happens, and what it wants is done in a model of
a cluster. The model has one job, nodes that come and go, a place for one pod on each, and costs of time that `COSTS` states. It knows neither
lost requests nor late events, which `tests/simulation` is for.

The step of a training takes half as long on twice as many nodes, and a save costs nothing. So the work that is done is counted in
node-seconds, and what is lost with a node is the work since the last checkpoint.

`python -m bench.spot` prints a table, after some minutes. The same seeds give the same table.
"""

from __future__ import annotations

import argparse
import datetime
import heapq
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from ddpjob_operator.api.status import Progress
from ddpjob_operator.core.actions import Action, CreatePod, DeletePod, DeletePods, LowerPodDeadline
from ddpjob_operator.core.gang import gang_of
from ddpjob_operator.core.model import Deletion, Exit, Job, Observed, Pod, Waiting
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.records import pod_of
from support.builders import NOW, job, service

HOUR, DAY = 3600.0, 86400.0
NODES, MIN_NODES = 8, 4
#: A step of all nodes takes a second.
NODE_SECONDS_PER_STEP = NODES
#: How many reconciles of one moment may want something new before the model is wrong.
MOST_ROUNDS = 50
NO_NODE = Waiting(reason="Unschedulable", message="0/8 nodes are available: 8 Insufficient nvidia.com/gpu.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that things take."""

    start: float
    """From a node for a pod until its ranks train: container, interpreter, torch, rendezvous, compilation."""
    stop: float
    """From the deletion of a pod until its object is gone."""
    detect: float
    """From the loss of a node without a warning until the operator knows that its pod is lost."""


#: 10 s: a whole gang of the digits needed 7 s on a quiet bed of two nodes, 17 s on a busy one. 180 s is an assumption: an image that is pulled, a
#: model that is compiled. Objects of pods are gone 2.7 to 4.1 s after the request (`core/stopping.py`). A kubelet that is silent is
#: noticed after 50 s, and `core/render/pods.py` lets pods tolerate that for 30 s.
COSTS = {"10 s": Costs(start=10.0, stop=3.0, detect=80.0), "3 min": Costs(start=180.0, stop=3.0, detect=80.0)}
CHECKPOINT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A node comes or goes, this many seconds after the job was created."""

    at: float
    node: str
    is_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a job made of a pool."""

    work: float
    """Node-seconds of training that were not lost."""
    available: float
    """Node-seconds of the nodes that there were, of which it could use at most its number at a time."""
    num_attempts: int

    @property
    def goodput(self) -> float:
        """The share of the available node-seconds that were useful."""
        return self.work / self.available


def spot_trace(random: Random, num_nodes: int, up: float, down: float, seconds: float) -> list[Change]:
    """Nodes that stay and stay away for exponentially distributed times, with these means in seconds; all are there at first."""
    changes = []
    for number in range(num_nodes):
        at, is_up = 0.0, True
        while at < seconds:
            changes.append(Change(at=at, node=f"node-{number}", is_up=is_up))
            at += random.expovariate(1 / (up if is_up else down))
            is_up = not is_up
    return sorted(changes, key=lambda change: change.at)


class Cluster:
    """One job on nodes that come and go."""

    def __init__(self, of: Job, costs: Costs, *, warned: bool) -> None:
        """`warned`: whether pods are asked to stop before their node goes, and save a checkpoint."""
        self.now = NOW
        self.seen = Observed(job=of, trainer_image="trainer:1", service=service(of))
        self._costs = costs
        self._warned = warned
        self._up: set[str] = set()
        self._pods: dict[str, Pod] = {}
        self._dead: set[str] = set()
        """Names of pods whose node is gone, which the operator does not know yet."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake_at: float | None = None
        self._work = self._saved = self._available = self._since_checkpoint = 0.0
        self._num_joined = 0
        """How many replacements of pods in the current attempt have joined the ranks, which rank 0 reports."""

    # --- Time -----------------------------------------------------------------------------------------------------------

    def run(self, changes: Sequence[Change], seconds: float) -> Result:
        """Live through it."""
        for change in changes:
            self._at(NOW + change.at, self._node_changes, change)
        end = NOW + seconds
        while self._events and self._events[0][0] < end:
            at = self._events[0][0]
            self._pass_until(at)
            while self._events and self._events[0][0] == at:
                heapq.heappop(self._events)[2]()
            self._reconcile()
        self._pass_until(end)
        return Result(work=self._work, available=self._available, num_attempts=self.seen.job.status.attempt)

    def _at(self, moment: float, call: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), lambda: call(*arguments)))

    def _pass_until(self, moment: float) -> None:
        """Train, or wait, until then."""
        seconds, num_nodes = moment - self.now, self._num_training()
        self.now = moment
        self._available += seconds * min(len(self._up), NODES)
        if num_nodes == 0:
            return
        self._work += seconds * num_nodes
        self._since_checkpoint += seconds
        if self._since_checkpoint >= CHECKPOINT_SECONDS:
            self._since_checkpoint %= CHECKPOINT_SECONDS
            self._saved = self._work - self._since_checkpoint * num_nodes

    def _num_training(self) -> int:
        """The nodes on which all ranks of the gang train; 0 while one is missing."""
        job, spec = self.seen.job, self.seen.job.spec_of_attempt
        assert spec is not None
        gang = gang_of(self.seen, spec.nodes)
        trains = not gang.missing and all(
            pod.running and pod.deletion is None and pod.name not in self._dead for pod in gang.current.values()
        )
        return job.status.replicas or gang.num_nodes if trains else 0

    # --- Nodes and pods ---------------------------------------------------------------------------------------------

    def _node_changes(self, change: Change) -> None:
        if change.is_up:
            self._up.add(change.node)
        elif change.node in self._up:
            on_it = [pod for pod in self._pods.values() if pod.node == change.node and not pod.all_ended]
            if self._warned and self._num_training():
                self._save()
            self._up.remove(change.node)
            for pod in on_it:
                self._dead.add(pod.name)
                self._at(self.now + (0.0 if self._warned else self._costs.detect), self._is_lost, pod.name)

    def _is_lost(self, name: str) -> None:
        pod = self._pods.get(name)
        if pod is None:
            return
        if pod.deletion is not None:
            self._is_gone(name)
            return
        said = "TerminationByKubelet: preempted" if self._warned else "DeletionByPodGC: the node is gone"
        exit_ = Exit(code=143, signal=15, reason="Error", message="", seen=self.now)
        self._put(replace(pod, running=False, all_ended=True, phase="Failed", exit=exit_, disruption=said))

    def _is_gone(self, name: str) -> None:
        self._pods.pop(name, None)
        self._dead.discard(name)

    def _starts(self, name: str) -> None:
        pod = self._pods.get(name)
        if pod is not None and pod.deletion is None and name not in self._dead:
            self._put(replace(pod, running=True, phase="Running"))

    def _put(self, pod: Pod) -> None:
        self._pods[pod.name] = pod

    def _schedule_pods(self) -> None:
        """Give each pod that waits a node, as long as there are some; the others are told that there is none."""
        taken = {pod.node for pod in self._pods.values() if pod.node and (not pod.all_ended)}
        free = iter(sorted(self._up - taken))
        for pod in [pod for pod in self._pods.values() if pod.node is None and pod.deletion is None]:
            node = next(free, None)
            if node is None:
                self._put(replace(pod, waiting=NO_NODE))
                continue
            self._put(replace(pod, waiting=None, node=node, placed=self.now))
            self._at(self.now + self._costs.start, self._starts, pod.name)

    # --- The operator -------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Ask for a plan and carry it out, until it wants nothing more."""
        for _ in range(MOST_ROUNDS):
            self._schedule_pods()
            if self._num_training():
                self._num_joined = sum(pod.replacement for pod in self.seen.job.status.replaced_pods)
            progress = Progress(
                joined_replacements=self._num_joined or None,
                step=int(self._work / NODE_SECONDS_PER_STEP),
                checkpoint_step=int(self._saved / NODE_SECONDS_PER_STEP),
            )
            self.seen = replace(self.seen, pods=tuple(self._pods.values()), progress=progress)
            made = plan(self.seen, self.now)
            before, pods = self.seen.job.status, dict(self._pods)
            trained = self._num_training() > 0
            for action in made.actions:
                self._carry_out(action)
            self.seen = replace(self.seen, job=replace(self.seen.job, status=made.status))
            if made.status.attempt != before.attempt:
                self._attempt_ends(trained=trained, failed=made.status.failure != before.failure)
            if made.status == before and pods == self._pods:
                break
        else:
            raise RuntimeError(f"the plan of one moment does not come to rest: {made}")
        if made.wake_at is not None and made.wake_at != self._wake_at:
            self._wake_at = max(made.wake_at, self.now + 1.0)
            self._at(self._wake_at, lambda: None)

    def _attempt_ends(self, *, trained: bool, failed: bool) -> None:
        """Ranks that are asked to stop while they train save; others have lost what they did since the last checkpoint.

        Ranks that wait for a replaced pod hold the newest state, and no program that could write it.
        """
        if trained and not failed:
            self._save()
        self._work, self._since_checkpoint = self._saved, 0.0
        self._num_joined = 0

    def _save(self) -> None:
        self._saved, self._since_checkpoint = self._work, 0.0

    def _carry_out(self, action: Action) -> None:
        match action:
            case CreatePod():
                metadata = {**action.body["metadata"], "uid": action.name, "resourceVersion": "1"}
                self._pods.setdefault(action.name, pod_of({**action.body, "metadata": metadata}))
            case DeletePod() | LowerPodDeadline():
                self._stop(self._pods.get(action.name))
            case DeletePods():
                for pod in [pod for pod in self._pods.values() if action.attempt in (None, pod.attempt)]:
                    self._stop(pod)

    def _stop(self, pod: Pod | None) -> None:
        if pod is None or pod.deletion is not None:
            return
        if pod.node is None or pod.all_ended:
            del self._pods[pod.name]
        else:
            self._put(replace(pod, deletion=Deletion(deadline=self.now + pod.grace_seconds)))
            self._at(self.now + self._costs.stop, self._is_gone, pod.name)


#: What a job says of its size and of restarts, by the head of its column.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "fixed": {},
    "fixed, inPlace": {"restart": {"inPlace": True}},
    "minNodes": {"minNodes": MIN_NODES, "deadlines": {"fewerNodesSeconds": 600}},
    "minNodes, inPlace": {
        "minNodes": MIN_NODES,
        "deadlines": {"fewerNodesSeconds": 600},
        "restart": {"inPlace": True},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A pool and what a start costs."""

    num_nodes: int
    up: float
    """Mean seconds until a node is preempted."""
    down: float
    """Mean seconds until it is back."""
    costs: str


def scenarios() -> Iterator[Scenario]:
    """All that the table has, as a product."""
    pools, ups, downs = (8, 10), (6 * HOUR, 24 * HOUR), (600.0, 2 * HOUR)
    for num_nodes, up, down, costs in itertools.product(pools, ups, downs, COSTS):
        yield Scenario(num_nodes=num_nodes, up=up, down=down, costs=costs)


def measure(
    scenario: Scenario, way: Mapping[str, Any], seeds: Sequence[int], seconds: float, *, warned: bool
) -> list[Result]:
    """One result for each seed."""
    results = []
    for seed in seeds:
        random = Random(seed)  # noqa: S311 the same seed gives the same trace
        trace = spot_trace(random, scenario.num_nodes, scenario.up, scenario.down, seconds)
        of = job(nodes=NODES, **way)
        results.append(Cluster(of, COSTS[scenario.costs], warned=warned).run(trace, seconds))
    return results


def row(scenario: Scenario, seeds: Sequence[int], seconds: float, *, warned: bool) -> str:
    """One line of the table: the median of goodput and of steps for each way."""
    cells = [
        str(scenario.num_nodes),
        f"{scenario.up / HOUR:g} h",
        f"{scenario.down / 60:g} min",
        scenario.costs,
    ]
    for way in WAYS.values():
        results = measure(scenario, way, seeds, seconds, warned=warned)
        goodput = statistics.median(one.goodput for one in results)
        steps = statistics.median(one.work for one in results) / NODE_SECONDS_PER_STEP / (seconds / DAY)
        cells.append(f"{100 * goodput:.0f} % ({steps / 1000:.0f})")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=float, default=1.0, help="length of each trace (default: %(default)g)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one trace each (default: 1 2 3)")
    parser.add_argument(
        "--no-warning",
        action="store_true",
        help="nodes vanish, and pods are not asked to stop before (default: they are)",
    )
    given = parser.parse_args()
    today = datetime.datetime.now(datetime.UTC).date()
    seeds = " ".join(map(str, given.seeds))
    warning = "without" if given.no_warning else "with"
    print(f"{NODES} nodes, minNodes {MIN_NODES}; {warning} a warning; days: {given.days:g}; seeds: {seeds}; {today}.")
    print("Median goodput, and in brackets thousands of steps a day, of which undisturbed nodes would do 86.\n")
    print(f"| nodes in the pool | stay | away | start | {' | '.join(WAYS)} |")
    print(f"|{' ---: |' * (4 + len(WAYS))}")
    for scenario in scenarios():
        print(row(scenario, given.seeds, given.days * DAY, warned=not given.no_warning), flush=True)


if __name__ == "__main__":
    main()
