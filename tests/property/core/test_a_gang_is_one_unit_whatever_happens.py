"""A model cluster does anything to a job's pods, and the operator may crash between any two of its calls.

Whatever the order: processes of two attempts never run together, attempts only grow, an end is final, a plan carried out
asks for nothing more, and once the cluster is quiet the job ends.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders import NOW, job, pod, service
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.core.model import (
    Action,
    CreatePod,
    CreateService,
    DeletePod,
    Exit,
    LowerPodDeadline,
    Observed,
    PatchService,
    Plan,
    Pod,
    ReadLog,
    ReadNode,
    Waiting,
)
from ddpjob_operator.core.plan import plan

OWN_GRACE_SECONDS = 30
NODES = ("node-0", "node-1", "node-2")
WORDS = ("", "checkpointStep=7", "checkpointStep=70", "Traceback (most recent call last):\n  x\nValueError: no")
EXIT_CODES = (0, 0, 1, 2, 69, 75, 137, 143)


class ModelCluster(RuleBasedStateMachine):
    """Holds what the API server would hold, and which processes really run."""

    @initialize(
        nodes=st.integers(1, 3),
        max_restarts=st.sampled_from([0, 1, 3]),
        keep_attempts=st.integers(0, 2),
        command=st.booleans(),
    )
    def apply_job(self, nodes: int, max_restarts: int, keep_attempts: int, command: bool) -> None:
        program = {"command": ["torchrun", "train.py"]} if command else {}
        restart = {"maxRestarts": max_restarts, "keepAttempts": keep_attempts}
        self.job = job(nodes=nodes, restart=restart, deadlines={"startSeconds": 300}, **program)
        self.now = NOW
        self.pods: dict[str, Pod] = {}
        self.running_uids: set[str] = set()
        self.service = None
        self.lost_nodes: set[str] = set()
        self.answered_nodes: frozenset[str] = frozenset()
        self.believed_lost: frozenset[str] = frozenset()
        self.logs: dict[str, str] = {}
        self.num_pods_made = 0
        self.end: DDPJobStatus | None = None

    # --- The operator ---------------------------------------------------------------------------------------------

    @rule(crash_after=st.one_of(st.none(), st.integers(0, 4)))
    def operator_works(self, crash_after: int | None) -> None:
        """One pass after the other until nothing changes, or until it crashes after so many calls."""
        calls_left = 10_000 if crash_after is None else crash_after
        for _ in range(20):
            made = self.planned()
            changes = [lambda action=action: self.carry_out(action) for action in made.actions]
            if made.write_ahead:
                assert not made.actions, "a plan that writes ahead does nothing else"
            if made.status != self.job.status:
                changes.append(lambda made=made: self.write(made.status))
            learned = self.answer(made)
            for change in changes:
                if not calls_left:
                    return
                calls_left -= 1
                change()
            if not changes and not learned:
                return
        raise AssertionError(f"no end of writes: {made.status.phase} {made.status.message} {made.actions}")

    def planned(self) -> Plan:
        seen = Observed(
            job=self.job,
            pods=tuple(self.pods.values()),
            trainer_image="trainer:1",
            service=self.service,
            nodes_gone=self.answered_nodes,
            logs=self.logs,
        )
        self.believed_lost = self.answered_nodes
        made = plan(seen, self.now)
        assert made.status.attempt >= self.job.status.attempt, "attempts only grow"
        assert self.end is None or made.status == self.end, "an end is final"
        return made

    def answer(self, made: Plan) -> bool:
        """Answer the plan's questions, and forget the nodes that it does not ask for; True if that is news."""
        asked = {question.name for question in made.questions if isinstance(question, ReadNode)}
        before = (self.answered_nodes, len(self.logs))
        self.answered_nodes = frozenset(asked & self.lost_nodes)
        for question in made.questions:
            if isinstance(question, ReadLog):
                self.logs.setdefault(question.uid, WORDS[-1])
        return before != (self.answered_nodes, len(self.logs))

    def write(self, status: DDPJobStatus) -> None:
        self.job = replace(self.job, status=status)
        if status.finished:
            self.end = status

    def carry_out(self, action: Action) -> None:
        match action:
            case CreateService():
                self.service = service(self.job, self.job.status.attempt)
            case PatchService():
                kept = {key: value for key, value in action.patch["spec"]["selector"].items() if value is not None}
                self.service = replace(self.service, selector=kept)
            case CreatePod():
                self.create(action)
            case DeletePod():
                self.delete(action)
            case LowerPodDeadline():
                self.change(self.named(action.uid), active_deadline_seconds=1)

    def create(self, action: CreatePod) -> None:
        assert action.name not in self.pods, "never two pods of one rank in one attempt"
        assert self.end is None, "nothing starts after the end"
        attempt = self.job.status.attempt
        for other in self.pods.values():
            # A node that was lost when it was read last may have come back since: the fence of the checkpoints is for that.
            alive = other.uid in self.running_uids and other.node not in self.lost_nodes | self.believed_lost
            assert other.attempt == attempt or not alive, f"{action.name} is created while {other.name} runs"
        self.num_pods_made += 1
        uid = f"uid-{self.num_pods_made}"
        rank = int(action.name.rsplit("-", 1)[1])
        pending = {"node": None, "phase": "Pending", "running": False, "ready": False}
        self.pods[action.name] = pod(self.job, rank, attempt, uid=uid, **pending)
        self.running_uids.add(uid)  # from here on it may start at any moment

    def delete(self, action: DeletePod) -> None:
        found = self.named(action.uid)
        if found is None:
            return
        if found.node is None or found.all_ended:
            self.remove(found)
        elif found.deletion_deadline is None:
            grace = OWN_GRACE_SECONDS if action.grace_seconds is None else action.grace_seconds
            self.change(found, deletion_deadline=self.now + grace)

    # --- The cluster ------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1, 5, 40, 400]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(suspend=st.booleans())
    def user_suspends_or_resumes(self, suspend: bool) -> None:
        spec = self.job.spec.model_copy(update={"suspend": suspend})
        self.job = replace(self.job, spec=spec, generation=self.job.generation + 1)

    @rule(port=st.sampled_from([29500, 30000]), nodes=st.integers(1, 3))
    def user_edits_while_suspended(self, port: int, nodes: int) -> None:
        if self.job.spec.suspend:
            spec = self.job.spec.model_copy(update={"master_port": port, "nodes": nodes})
            self.job = replace(self.job, spec=spec, generation=self.job.generation + 1)

    @rule(node=st.sampled_from(NODES))
    def node_is_lost_or_comes_back(self, node: str) -> None:
        self.lost_nodes ^= {node}

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def something_happens_to_a_pod(self, data: st.DataObject) -> None:
        victim = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        if victim.node in self.lost_nodes:
            if victim.deletion_deadline is None:
                deadline = self.now + OWN_GRACE_SECONDS
                self.change(victim, deletion_deadline=deadline, disruption="DeletionByTaintManager: lost")
        elif victim.node is None:
            data.draw(st.sampled_from([self.schedule, self.schedule, self.remove]))(victim)
        elif victim.exit is not None:
            self.finish(victim)
        elif victim.running:
            data.draw(st.sampled_from([self.exit, self.exit, self.evict, self.remove]))(victim, data=data)
        else:
            data.draw(st.sampled_from([self.start, self.start, self.fail_to_pull]))(victim)

    def schedule(self, victim: Pod) -> None:
        self.change(victim, node=NODES[self.num_pods_made % len(NODES)])

    def start(self, victim: Pod) -> None:
        self.change(victim, running=True, ready=True, phase="Running", waiting=None)

    def fail_to_pull(self, victim: Pod) -> None:
        self.change(victim, waiting=Waiting(reason="ErrImagePull", message="not found"))

    def evict(self, victim: Pod, **_: object) -> None:
        self.change(victim, deletion_deadline=self.now + OWN_GRACE_SECONDS, disruption="EvictionByEvictionAPI: drain")

    def exit(self, victim: Pod, data: st.DataObject) -> None:
        code, sidecar = data.draw(st.sampled_from(EXIT_CODES)), data.draw(st.booleans())
        end = Exit(
            code=code,
            signal=code - 128 if code > 128 else None,
            reason="Error" if code else "Completed",
            message=data.draw(st.sampled_from(WORDS)),
        )
        self.change(victim, exit=end, running=False, ready=False, ended_seen=self.now)
        if not sidecar:
            self.finish(self.pods[victim.name])

    def finish(self, victim: Pod) -> None:
        """The last container ends; a deleted pod's object goes with it."""
        self.running_uids.discard(victim.uid)
        if victim.deletion_deadline is not None:
            self.remove(victim)
            return
        assert victim.exit is not None, "asked for a pod whose program has ended"
        self.change(victim, all_ended=True, phase="Failed" if victim.exit.code else "Succeeded")

    def remove(self, victim: Pod, **_: object) -> None:
        self.running_uids.discard(victim.uid)
        del self.pods[victim.name]

    def change(self, victim: Pod | None, **changes: object) -> None:
        if victim is not None:
            self.pods[victim.name] = replace(victim, **changes)

    def named(self, uid: str) -> Pod | None:
        return next((found for found in self.pods.values() if found.uid == uid), None)

    # --- What holds -------------------------------------------------------------------------------------------------

    @invariant()
    def planning_never_fails(self) -> None:
        self.planned()

    def teardown(self) -> None:
        """The nodes come back, programs succeed, deletions end: then the job ends, too, and says how."""
        if not hasattr(self, "job"):
            return
        self.user_suspends_or_resumes(False)
        self.lost_nodes.clear()
        for _ in range(40):
            self.operator_works(None)
            self.now += 10
            for quiet in list(self.pods.values()):
                if quiet.deletion_deadline is not None:
                    self.remove(quiet)
                elif quiet.active_deadline_seconds == 1:
                    self.finish(quiet)
                elif quiet.node is None:
                    self.schedule(quiet)
                elif quiet.exit is None and not quiet.running:
                    self.start(quiet)
                elif quiet.exit is None:
                    done = Exit(code=0, signal=None, reason="Completed", message="")
                    self.change(quiet, exit=done, running=False, ended_seen=self.now)
                    self.finish(self.pods[quiet.name])
        assert self.end is not None, f"the cluster is quiet, and the job says: {self.job.status.message}"
        assert not self.running_uids, "nothing runs after the end"


TestModelCluster = ModelCluster.TestCase
TestModelCluster.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
