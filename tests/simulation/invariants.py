"""What must hold whatever happens, checked at each change of the API server against what truly runs.

A process that may not be the only one to write (a second operator, or requests of a dead one still on their way) is
excused from the order of attempts, as the design says: its stragglers are deleted on sight, the Service never selects
them, and the fence keeps them from the checkpoints. Nothing else is excused from anything.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ddpjob_operator.api import names
from ddpjob_operator.api.names import Reason, contract
from ddpjob_operator.core.times import epoch_seconds
from simulation.api_server import JOBS, NODES, POD_GROUPS, PODS, SERVICES, ApiServer, Body, owner_uid
from simulation.nodes import Cluster
from simulation.operator_process import OperatorProcess
from simulation.schedule import Schedule
from simulation.virtual_time import OperatorClocks

#: A node that came back may have been read as lost so long before: reads may be slow or fail.
NODE_NEWS_SECONDS = 70.0
#: How long an operator may know nothing new after its watches were held up.
VIEW_SECONDS = 320.0
#: How soon an operator whose watches work must have deleted a straggler.
STRAGGLER_SECONDS = 20.0
#: Of a pod: attempt, node rank, and how often the pod of that rank had been replaced before.
Place = tuple[int, int, int]
#: Ends of an attempt that no failure has caused.
_NO_FAILURE = frozenset({Reason.SUSPENDED, Reason.SPEC_CHANGED, Reason.RESIZED})


class Violation(AssertionError):  # noqa: N818 it is what an assertion found, not an error of a caller
    """An invariant does not hold."""


class World(Protocol):
    """What the checks look at."""

    server: ApiServer
    cluster: Cluster
    clocks: OperatorClocks
    processes: list[OperatorProcess]
    schedule: Schedule

    def fail(self, words: str) -> None:
        """End the schedule with this violation."""

    def now(self) -> float:
        """The loop's clock."""

    def later(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        """Do something in a while."""


@dataclass(slots=True)
class _JobFacts:
    """What is remembered of one job object."""

    created: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """Pods by attempt, rank and replacement."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Number of nodes by attempt, as its pods have it."""
    placed: dict[int, set[int]] = field(default_factory=dict)
    """By attempt the ranks that have had a node."""
    began: dict[int, float] = field(default_factory=dict)
    """status.attemptStartTime of each attempt, in seconds since the epoch."""
    end: Body | None = None
    service_touched: bool = False
    """Whether somebody else has changed or removed the Service."""


class Checker:
    """Observes the API server."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: dict[str, _JobFacts] = {}
        self._stragglers: set[str] = set()
        self.forced: set[str] = set()
        """uids of pods whose objects somebody removed although they may run."""
        self._deleted_by_others: set[str] = set()
        """uids of pods that somebody else than an operator has marked or removed."""
        self._failed_at: dict[str, float] = {}
        """When the API server first showed a pod's end, by uid."""
        self.clock_jumped_at = 0.0
        self.view_disturbed_at = 0.0
        """When the watches of an operator were held up or broken last."""
        self.status_written_at = 0.0
        self.counts: Counter[str] = Counter()
        """How often the rarer things happened."""
        self._checks: dict[str, Callable[[Body | None, Body | None, str], None]] = {
            PODS: self._pod,
            JOBS: self._job,
            SERVICES: self._service,
        }

    def on_change(self, plural: str, old: Body | None, new: Body | None, by: str) -> None:
        """Check one change."""
        check = self._checks.get(plural)
        if check is not None:
            check(old, new, by)

    # --- Pods -----------------------------------------------------------------------------------------------------

    def _pod(self, old: Body | None, new: Body | None, by: str) -> None:
        if new is not None and new.get("status", {}).get("phase") == "Failed":
            self._failed_at.setdefault(new["metadata"]["uid"], self._world.now())
        if by == "scheduler" and new is not None:
            self.counts["gang refused"] += self._world.schedule.gangs and "nodeName" not in new["spec"]
            if "nodeName" in new["spec"]:
                self._placed(new)
        if not _is_operator(by):
            if old is not None and (new is None or _newly_marked(old, new)):
                self._deleted_by_others.add(old["metadata"]["uid"])
            return
        if old is None and new is not None:
            self._created(new, by)
        elif old is not None and (new is None or _newly_marked(old, new)):
            self._deleted(old, new, by)

    def _created(self, pod: Body, by: str) -> None:
        metadata, world = pod["metadata"], self._world
        job = world.server.by_uid(JOBS, owner_uid(pod))
        if job is None:
            return  # it was deleted a moment ago, and the garbage collector takes the pod
        name, uid = metadata["name"], metadata["uid"]
        labels = metadata["labels"]
        attempt, rank, replacement = place = _place(pod)
        facts = self._facts(job)
        suffix = f"-r{replacement}" if replacement else ""
        self._must(name == f"{job['metadata']['name']}-{attempt}-{rank}{suffix}", f"pod {name} is labelled {labels}")
        status = job.get("status") or {}
        current = status.get("attempt", 1)
        is_early = attempt > current or (attempt == current and replacement > _replacement(status, rank))
        self._must(not is_early, f"{name} is created by {by} before the status names its attempt or replacement")
        facts.created[place] += 1
        self.counts["pod replaced"] += replacement > 0
        alone = self._alone(by)
        if attempt < current or replacement < _replacement(status, rank):
            self._stragglers.add(uid)
            self.counts["straggler"] += 1
            world.later(STRAGGLER_SECONDS, self._straggler_is_deleted, uid)
            self._must(not alone, f"{name} is created by {by} although the job is at attempt {current}")
            return
        if not alone:
            self.counts["pod of a second writer"] += 1
            return
        self._must(facts.end is None, f"{name} is created by {by} after the end of the job")
        self._check_size(name, facts, attempt, _num_nodes(pod), status, by)
        again = facts.created[place] > 1 and _is_true(status, "Created")
        self._must(not again, f"{name} is created a second time by {by}")
        if not self._stopped_with_checkpoint(job["metadata"]["uid"], attempt - 1):  # there is nothing to back off from
            self._not_too_early(name, status, by)
        for other in world.server.all(PODS):
            if owner_uid(other) == metadata["ownerReferences"][0]["uid"] and other["metadata"]["uid"] != uid:
                self._must(not self._may_run(other, place), f"{name} is created while {_name(other)} may run")
        self._no_hidden_container_runs(name, job["metadata"]["uid"], place)
        master = job["metadata"]["uid"], attempt, _replacement(status, 0)
        self._must(
            facts.service_touched or world.cluster.programs.master_of(*master),
            f"{name} is created by {by} while no Service leads to rank 0 of attempt {attempt}",
        )

    def _placed(self, pod: Body) -> None:
        """A scheduler of gangs gives no pod of a gang a node unless all of them have had one at the end of its pass."""
        job = self._world.server.by_uid(JOBS, owner_uid(pod))
        if job is None or not self._world.schedule.gangs:
            return
        attempt, rank, _ = _place(pod)
        placed = self._facts(job).placed.setdefault(attempt, set())
        placed.add(rank)
        environment = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
        num_ranks = int(environment[contract.NNODES] or 0)

        def check() -> None:
            self._must(
                len(placed) >= num_ranks,
                f"only the ranks {placed} of the gang of {_name(pod)} have a node",
            )

        self._world.later(0.0, check)

    def _check_size(self, name: str, facts: _JobFacts, attempt: int, size: int, status: Body, by: str) -> None:
        """All pods of an attempt are of one size; it is smaller than wanted only after a wait, and never too small."""
        others = facts.sizes.setdefault(attempt, size)
        self._must(size == others, f"{name} is one of {size} pods, and others of its attempt are of {others}")
        self.counts["attempt of another size"] += facts.sizes.get(attempt - 1, size) != size
        schedule, wanted = self._world.schedule, status.get("shrunkFrom")
        if wanted is None:
            return
        self.counts["attempt on fewer nodes"] += 1
        least = schedule.min_nodes
        self._must(least is not None and least <= size < wanted, f"{name} is one of {size} pods of {least} to {wanted}")
        wall = self._world.clocks.wall_of(by)
        waited = wall - facts.began.get(attempt - 1, wall)
        on_time = waited >= schedule.full_size_seconds - 1.5 or self.clock_jumped_at > 0  # the status has whole seconds
        self._must(on_time, f"{name} is one of {size} pods after {waited:.1f} s, of {wanted} that are wanted")

    def _not_too_early(self, name: str, status: Body, by: str) -> None:
        retry_time = status.get("retryTime")
        if retry_time is not None and self._world.now() > self.clock_jumped_at + 60:
            early = epoch_seconds(retry_time) - self._world.clocks.wall_of(by)
            self._must(early <= 0.1, f"{name} is created {early:.1f} s before status.retryTime")

    def _stopped_with_checkpoint(self, job_uid: str, attempt: int) -> bool:
        """Whether rank 0 of this attempt has saved on request, which may show only after the failure was recorded."""
        boxes = (box.main for box in self._world.cluster.sandboxes.values() if box.main.rank == 0)
        return any(
            main.job_and_attempt == (job_uid, attempt) and main.exit and main.exit.code == contract.EXIT_CHECKPOINTED
            for main in boxes
        )

    def _may_run(self, pod: Body, new: Place) -> bool:
        """Whether a pod that a new one follows may run on a node that lives, now or later."""
        metadata = pod["metadata"]
        if not _follows(new, _place(pod)) or metadata["uid"] in self._stragglers:
            return False
        sandbox = self._world.cluster.sandboxes.get(metadata["uid"])
        if sandbox is None:
            return "deletionTimestamp" not in metadata and pod.get("status", {}).get("phase") != "Failed"
        return sandbox.runs and self._node_lives(sandbox.node)

    def _no_hidden_container_runs(self, name: str, job_uid: str, new: Place) -> None:
        """Pods whose object is gone may still run: they must not have been removed so by us."""
        world = self._world
        for uid, sandbox in world.cluster.sandboxes.items():
            of_job, attempt = sandbox.main.job_and_attempt
            followed = of_job == job_uid and _follows(new, (attempt, sandbox.main.rank, sandbox.main.replacement))
            if not sandbox.runs or not followed or uid in self.forced | self._stragglers:
                continue
            hidden = self._node_lives(sandbox.node) and world.server.by_uid(PODS, uid) is None
            self._must(not hidden, f"{name} is created while the containers of {sandbox.name} still run")

    def _deleted(self, old: Body, new: Body | None, by: str) -> None:
        metadata, world = old["metadata"], self._world
        job = world.server.by_uid(JOBS, owner_uid(old))
        self._must(bool(owner_uid(old)), f"{by} deletes {metadata['name']}, which is a stranger's")
        if job is None:
            return
        spec, status = job["spec"], job.get("status") or {}
        facts = self._facts(job)
        (attempt, rank, replacement), current = _place(old), status.get("attempt", 1)
        sandbox = world.cluster.sandboxes.get(metadata["uid"])
        if new is None and sandbox is not None and sandbox.runs:
            lives = self._node_lives(sandbox.node)
            self._must(not lives, f"{by} removes {metadata['name']} by force although it runs on a living node")
            self.counts["force deletion on a lost node"] += 1
        is_current = attempt > current or (attempt == current and replacement >= _replacement(status, rank))
        ours = is_current and facts.end is None
        self._must(not ours, f"{by} deletes {metadata['name']}, a pod of the current attempt {current}")
        if not self._alone(by):
            return
        outlived = facts.end is not None and "ttlSecondsAfterFinished" in spec
        if (
            sandbox is not None
            and sandbox.kill_timer is None
            and not outlived
            and self._is_known_to_have_failed(metadata["uid"])
        ):
            kept = attempt >= current - spec.get("restart", {}).get("keepAttempts", 2)
            self._must(not kept, f"{by} deletes {metadata['name']}, whose log is evidence")

    def _is_known_to_have_failed(self, uid: str) -> bool:
        """Whether every operator must have seen its end before it decided anything that arrives now."""
        if self._world.schedule.fault_percent:
            return False  # the request may have been on its way for long
        now = self._world.now()
        return self._failed_at.get(uid, now) < now - 5 and self.view_disturbed_at < now - VIEW_SECONDS

    def _node_lives(self, name: str) -> bool:
        """Whether anybody who read this node lately must have found it alive."""
        node = self._world.cluster.nodes.get(name)
        exists = node is not None and self._world.server.find(NODES, name) is not None
        return exists and node is not None and node.ready and node.back_at + NODE_NEWS_SECONDS < self._world.now()

    # --- Jobs -----------------------------------------------------------------------------------------------------

    def _job(self, old: Body | None, new: Body | None, by: str) -> None:
        if old is None or new is None or not _is_operator(by):
            return
        self.status_written_at = self._world.now()
        facts, status, before = self._facts(new), new["status"], old.get("status") or {}
        name = _name(new)
        if "attempt" not in status:
            self._world.fail(f"{by} writes a status of {name} without an attempt: {status}")
            return
        self._must(new["spec"] == old["spec"], f"{by} changes the spec of {name}")
        if facts.end is not None:
            same = _without_generations(status) == _without_generations(facts.end)
            self._must(same, f"{by} changes the status of {name} after its end: {_difference(facts.end, status)}")
        if "attemptStartTime" in status:
            facts.began[status["attempt"]] = epoch_seconds(status["attemptStartTime"])
        step = status["attempt"] - before.get("attempt", 1)
        self._must(step in (0, 1), f"{by} takes {name} from attempt {before.get('attempt')} to {status['attempt']}")
        self._counted(name, before, status, step)
        times = (status.get("restarts") or {}).get("countedTimes", ())
        most = new["spec"].get("restart", {}).get("maxRestarts", len(times))
        rose = _restarts(status, "counted") > _restarts(before, "counted")
        self._must(not rose or len(times) <= most, f"{name}: {len(times)} restarts are counted, and {most} are allowed")
        self._check_failure(new, status.get("failure") or {}, before.get("failure") or {})
        past = [failure["attempt"] for failure in status.get("attempts", ()) if not failure.get("replaced")]
        self._must(past == sorted(set(past)), f"{name} remembers the attempts {past}")
        if _is_true(status, "Succeeded") or _is_true(status, "Failed"):
            facts.end = facts.end or status
            self._ended(new, status)

    def _counted(self, name: str, before: Body, status: Body, step: int) -> None:
        """Each attempt that a failure ended is counted once, as one or the other."""
        more = _num_restarts(status) - _num_restarts(before)
        failure = status.get("failure") or {}
        failed = step == 1 and failure.get("attempt") == before.get("attempt", 1) and not failure.get("replaced")
        failed = failed and failure.get("reason") not in _NO_FAILURE and status["reason"] not in _NO_FAILURE
        words = f"{name}: restarts {before.get('restarts')} → {status.get('restarts')} with failure {failure}"
        replaced = _restarts(status, "podReplacements") - _restarts(before, "podReplacements")
        self._must(replaced in (0, 1) and (not replaced or (step == 0 and failure.get("replaced", False))), words)
        self._must(more == (1 if failed or replaced else 0), words)
        self.counts["restart"] += step

    def _check_failure(self, job: Body, failure: Body, before: Body) -> None:
        """What a failure says of a pod, a node or a person is true."""
        if failure == before or not failure.get("pod"):
            return
        boxes = [
            box
            for box in self._world.cluster.sandboxes.values()
            if box.name == failure["pod"] and box.main.job_and_attempt[0] == job["metadata"]["uid"]
        ]
        if not boxes:
            return
        name, code = _name(job), failure.get("exitCode")
        codes = [box.main.exit.code for box in boxes if box.main.exit is not None]
        self._must(code is None or code in codes, f"{name}: the exit codes of {failure['pod']} were {codes}: {failure}")
        if failure["reason"] == Reason.POD_DELETED:
            by_others = any(box.uid in self._deleted_by_others for box in boxes)
            self._must(by_others, f"{name}: nobody but the operator has deleted {failure['pod']}: {failure}")
        if failure["reason"] == Reason.NODE_LOST:
            node = self._world.cluster.nodes[failure["node"]]
            shown = self._world.server.find(NODES, node.name)
            lost = shown is None or not node.ready or node.back_at > 0
            self._must(lost, f"{name}: node {node.name} was never lost: {failure}")

    def _ended(self, job: Body, status: Body) -> None:
        uid, attempt, name = job["metadata"]["uid"], status["attempt"], _name(job)
        self._must(bool(status.get("completionTime")), f"{name} has ended without status.completionTime")
        self._must(bool(status.get("reason")) and bool(status.get("message")), f"{name} has ended without a word")
        if _is_true(status, "Succeeded"):
            self._must(not _is_true(status, "Failed"), f"{name} has both succeeded and failed")
            gang = self._world.cluster.programs.gangs.get((uid, attempt))
            codes = [c.exit.code if c.exit else None for c in gang.ranks.values()] if gang else []
            # As many as the attempt had: somebody may edit the spec of a job that has ended.
            num_nodes = gang.num_nodes if gang else job["spec"]["nodes"]
            self._must(codes == [0] * num_nodes, f"{name} is said to have succeeded; its ranks: {codes}")

    # --- Services -------------------------------------------------------------------------------------------------

    def _service(self, old: Body | None, new: Body | None, by: str) -> None:
        job = self._world.server.by_uid(JOBS, owner_uid(new or old or {}))
        if job is None:
            return
        if not _is_operator(by):
            self._facts(job).service_touched = True
            return
        if new is None:
            self._world.fail(f"{by} deletes a Service")
            return
        attempt = int(new["spec"]["selector"][names.LABEL_ATTEMPT])
        current = (job.get("status") or {}).get("attempt", 1)
        self._must(attempt <= current, f"the Service is pointed at attempt {attempt}, and the job is at {current}")
        if old is not None and not self._facts(job).service_touched:
            former = int(old["spec"]["selector"].get(names.LABEL_ATTEMPT, 0))
            self._must(former <= attempt, f"the Service is pointed back from attempt {former} to {attempt}")

    # --- At the end -----------------------------------------------------------------------------------------------

    def nothing_runs_of(self, job_uid: str) -> None:
        """After the end of a job, or of its object, no container of it runs."""
        for sandbox in self._world.cluster.sandboxes.values():
            runs = sandbox.runs and sandbox.main.job_and_attempt[0] == job_uid
            self._must(not runs, f"{sandbox.name} still runs although its job has ended")

    def _straggler_is_deleted(self, uid: str) -> None:
        """Pods of past attempts that a second writer made are deleted on sight, by whoever sees."""
        pod = self._world.server.by_uid(PODS, uid)
        job = self._world.server.by_uid(JOBS, owner_uid(pod)) if pod else None
        if pod is None or job is None or not any(p.sees_well() for p in self._world.processes):
            return
        sandbox = self._world.cluster.sandboxes.get(uid)
        stays = "deletionTimestamp" not in pod["metadata"] and (sandbox is None or sandbox.runs)
        self._must(not stays, f"the straggler {_name(pod)} is left alone")

    def outdated_evidence_is_gone(self) -> None:
        """Where nothing came in between, only the pods of the latest attempts are kept."""
        if self.view_disturbed_at or len(self._world.processes) > 1:
            return
        for pod in self._world.server.all(PODS):
            if pod["metadata"]["uid"] in self._stragglers:
                continue
            job = self._world.server.by_uid(JOBS, owner_uid(pod))
            if job is not None and _is_true(job.get("status") or {}, "Succeeded"):
                oldest = job["status"]["attempt"] - job["spec"].get("restart", {}).get("keepAttempts", 2)
                attempt = int(pod["metadata"]["labels"][names.LABEL_ATTEMPT])
                self._must(attempt >= oldest, f"{_name(pod)} is kept, and attempts before {oldest} should not be")

    def checkpoints_were_fenced(self) -> None:
        """No attempt has saved anything after a later one of the same job, and no pod of rank 0 after its successor."""
        newest: dict[str, tuple[int, int]] = {}
        for job_uid, *owner in self._world.cluster.programs.commits:
            attempt, replacement = owner
            before = newest.setdefault(job_uid, (attempt, replacement))
            self._must(before <= (attempt, replacement), f"attempt and replacement {owner} save after {before}")
            newest[job_uid] = attempt, replacement

    def no_group_is_left(self) -> None:
        """After the end of a job, or of its object, there is no PodGroup of it."""
        for group in self._world.server.all(POD_GROUPS):
            job = self._world.server.by_uid(JOBS, owner_uid(group))
            runs = job is not None and self._facts(job).end is None
            self._must(runs, f"the PodGroup {_name(group)} is left")

    def no_write_changed_nothing(self) -> None:
        """No operator's patch of a status or a Service left everything as it was."""
        idle = [entry for entry in self._world.server.idle_patches if entry[0] != PODS and _is_operator(entry[2])]
        self._must(not idle, f"patches that changed nothing: {idle}")

    def nothing_was_asked_twice(self) -> None:
        """No operator has sent a creation or a deletion again that had been answered well and still held."""
        for process in self._world.processes:
            self._must(not process.repeated, f"{process.name} has sent again: {process.repeated}")

    # --- What they need -------------------------------------------------------------------------------------------

    def _alone(self, by: str) -> bool:
        """Whether nobody else can have written lately: no other process, and no request of a dead one on its way."""
        process = self._process(by)
        if process.has_late_requests:
            return False
        since = max(process.started_at, self._world.now() - VIEW_SECONDS)
        return not any(p is not process and p.could_write_since(since) for p in self._world.processes)

    def _process(self, name: str) -> OperatorProcess:
        return next(process for process in reversed(self._world.processes) if process.name == name)

    def _facts(self, job: Body) -> _JobFacts:
        return self._jobs.setdefault(job["metadata"]["uid"], _JobFacts())

    def _must(self, holds: bool, words: str) -> None:
        if not holds:
            self._world.fail(words)


def _is_operator(by: str) -> bool:
    return by.startswith("operator")


def _without_generations(status: Body) -> Body:
    """The status apart from the generations of the spec that it and its conditions are for."""
    conditions = [{**condition, "observedGeneration": 0} for condition in status.get("conditions", ())]
    return {**status, "observedGeneration": 0, "conditions": conditions}


def _name(body: Body) -> str:
    return str(body["metadata"]["name"])


def _newly_marked(old: Body, new: Body) -> bool:
    return "deletionTimestamp" in new["metadata"] and "deletionTimestamp" not in old["metadata"]


def _is_true(status: Body, type_: str) -> bool:
    return any(c["type"] == type_ and c["status"] == "True" for c in status.get("conditions", ()))


def _num_restarts(status: Body) -> int:
    return _restarts(status, "counted") + _restarts(status, "infrastructure")


def _restarts(status: Body, kind: str) -> int:
    return int((status.get("restarts") or {}).get(kind, 0))


def _place(pod: Body) -> Place:
    labels = pod["metadata"]["labels"]
    replacement = labels.get(names.LABEL_REPLACEMENT, "0")
    return int(labels[names.LABEL_ATTEMPT]), int(labels[names.LABEL_RANK]), int(replacement)


def _num_nodes(pod: Body) -> int:
    """The number of nodes of its attempt, by its environment."""
    variables = pod["spec"]["containers"][0]["env"]
    return next(int(variable["value"]) for variable in variables if variable["name"] == contract.NNODES)


def _replacement(status: Body, rank: int) -> int:
    """How often the pod of this rank has been replaced in the current attempt."""
    return next((pod["replacement"] for pod in status.get("replacedPods", ()) if pod["rank"] == rank), 0)


def _follows(new: Place, old: Place) -> bool:
    """Whether the new pod may be created only once the old one has stopped."""
    return new[0] != old[0] or (new[1] == old[1] and new[2] > old[2])


def _difference(old: Body, new: Body) -> str:
    keys = [key for key in {*old, *new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key}: {old.get(key)} → {new.get(key)}" for key in sorted(keys))
