"""What a schedule is: a job, a cluster, the fates of its gangs, and what disturbs them when."""

import re
from dataclasses import dataclass

from hypothesis import strategies as st

from simulation.containers import Fate

#: Seconds between one disturbance and the next: at once, within a pass, within a start, after a run.
PAUSES_SECONDS = (0.0, 0.002, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 400.0)


def weighted(text: str) -> tuple[str, ...]:
    """Each name as often as the number after it says, or once: `crash 6 outage`."""
    return tuple(name for name, number in re.findall(r"(\w+)(?: (\d+))?", text) for _ in range(int(number or 1)))


#: What can be done, with how often. `disturbances.py` has a function of each name.
DISTURBANCES = weighted("""
    crash 6 faults 6 outage 2 second_operator 6 stop_second_operator
    freeze_watches 2 cut_watches forget_history 2 lose_delete 2 repeat_events 2
    lose_node 3 node_comes_back 2 remove_node restart_kubelet
    delete_pod 3 force_delete_pod evict_pod 2 evict_for_memory kill_rank 3 exit_rank
    suspend 2 resume 3 edit_shape edit_limits delete_service edit_service strangers_service
    delete_job replace_job 2 replace_job_while_deleting recreate_job 2
    exceed_quota raise_quota break_webhook repair_webhook lose_image find_image refuse_pods admit_pods 2
    fill_nodes free_nodes strangers_pod remove_stranger jump_clock 2
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One disturbance, some time after the one before."""

    after_seconds: float
    do: str
    pick: int = 0
    """Chooses among what the disturbance can be done to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All that decides what happens."""

    seed: int = 0
    """Of latencies, lags and jitter."""
    nodes: int = 2
    places: int = 2
    """Pods that fit on each node of the cluster."""
    num_machines: int = 3
    trainer: bool = False
    in_place: bool = False
    """Whether ranks wait in their pods for a lost pod, which only the trainer does."""
    gangs: bool = False
    """Whether the scheduler knows PodGroups, and the operator makes them."""
    min_nodes: int | None = None
    full_size_seconds: int = 120
    sidecar: bool = False
    max_restarts: int = 3
    keep_attempts: int = 2
    own_grace_seconds: int = 10
    start_seconds: int = 300
    hang_seconds: int = 900
    finish_seconds: int = 3600
    queue_seconds: int | None = None
    active_seconds: int | None = None
    ttl_seconds: int | None = None
    ignored_exit_code: int | None = None
    sigterm: str = "exit"
    reads_progress: bool = False
    fault_percent: int = 0
    """Share of requests that meet a fault while the disturbances last."""
    second_operator_stays: bool = False
    train_seconds: float = 20.0
    """How long a gang trains that comes to a good end."""
    fates: tuple[Fate, ...] = ()
    steps: tuple[Step, ...] = ()


FATES = (*("fail",) * 4, "killed", "killed", "out_of_memory", "stop", "stop", "hang", "straggle", "bad_config")


def fates() -> st.SearchStrategy[Fate]:
    """What becomes of one gang."""
    return st.builds(
        Fate,
        kind=st.sampled_from(FATES),
        after_seconds=st.sampled_from((0.0, 1.0, 5.0, 30.0, 400.0)),
        rank=st.integers(0, 3),
        peers_hang=st.booleans(),
    )


#: In these schedules ranks wait in their pods for a lost pod.
REPLACED_PODS = "replaced pods"
#: In these schedules spec.nodes changes while the job runs, and the job may get fewer nodes.
RESIZED = "changed sizes"
#: As with REPLACED_PODS, and Kubernetes' own gang scheduling places the pods.
GANGS = "gangs"
#: Groups of disturbances that together reach what single ones rarely do.
FOCUSES = {
    "everything": (),
    "two writers": weighted("second_operator 2 evict_pod delete_pod suspend resume"),
    "replaced jobs": weighted("replace_job_while_deleting 2 replace_job crash lose_delete"),
    "failing ranks": weighted("kill_rank exit_rank delete_pod evict_pod evict_for_memory suspend resume"),
    "lost nodes": weighted("lose_node 2 node_comes_back remove_node kill_rank"),
    REPLACED_PODS: weighted("""
        kill_rank restart_ranks 2 delete_pod evict_pod evict_for_memory lose_node node_comes_back crash
    """),
    RESIZED: weighted("""
        resize 3 resize_and_back edit_sizes fill_nodes 3 free_nodes 2 crash kill_rank 2 evict_pod lose_node
        second_operator suspend
    """),
    GANGS: weighted("""
        fill_nodes free_nodes fill_nodes free_nodes suspend resume delete_group delete_pod kill_rank lose_node
        node_comes_back replace_job replace_job_while_deleting crash second_operator resize resize_and_back
    """),
    "old news": weighted("repeat_events freeze_watches forget_history lose_delete delete_pod suspend resume"),
}


def steps(focus: str) -> st.SearchStrategy[Step]:
    """One disturbance, three times out of four of this group."""
    group = FOCUSES[focus] or DISTURBANCES
    return st.builds(
        Step,
        after_seconds=st.sampled_from(PAUSES_SECONDS),
        do=st.sampled_from((group, group, group, DISTURBANCES)).flatmap(st.sampled_from),
        pick=st.integers(0, 63),
    )


#: An attempt on fewer nodes, which has them all before it ends: longer than the job waits for all, runs on fewer and holds places.
MAY_GROW = (
    Step(after_seconds=1.0, do="resume"),
    Step(after_seconds=0.0, do="fill_nodes"),
    Step(after_seconds=1.0, do="kill_rank"),
    Step(after_seconds=400.0, do="free_nodes"),
)


def schedules(focus: str = "everything") -> st.SearchStrategy[Schedule]:
    """Schedules in which the disturbances of one group are frequent."""
    waits, resizes = focus in (REPLACED_PODS, GANGS), focus == RESIZED
    first = (Step(after_seconds=0.0, do="fill_nodes"),) if resizes else ()  # one node, so that the gang does not fit
    last = MAY_GROW if resizes else ()
    return st.builds(
        Schedule,
        seed=st.integers(0, 2**32),
        nodes=st.just(3) if resizes else st.integers(2, 3) if waits else st.integers(1, 3),
        min_nodes=st.sampled_from((None, 1, 1, 2)) if resizes else st.none(),
        full_size_seconds=st.sampled_from((20, 120)) if resizes else st.just(120),
        places=st.just(1) if resizes else st.integers(1, 2),
        num_machines=st.just(3) if resizes else st.integers(3, 4),
        trainer=st.just(True) if waits else st.booleans(),
        in_place=st.booleans() if resizes else st.just(waits),
        gangs=st.booleans() if resizes else st.just(focus == GANGS),
        sidecar=st.sampled_from((False, False, True)),
        max_restarts=st.sampled_from((3, 10) if waits else (0, 1, 3, 10)),
        keep_attempts=st.integers(0, 2),
        own_grace_seconds=st.sampled_from((1, 10, 30)),
        start_seconds=st.sampled_from((60, 300)),
        hang_seconds=st.sampled_from((60, 900)),
        finish_seconds=st.sampled_from((60, 3600)),
        queue_seconds=st.sampled_from((None, None, None, 100)),
        active_seconds=st.sampled_from((None, None, None, 200)),
        ttl_seconds=st.sampled_from((None, None, None, None, 0, 60)),
        ignored_exit_code=st.sampled_from((None, None, 1)),
        sigterm=st.sampled_from(("exit", "save", "ignore")),
        reads_progress=st.just(True) if waits else st.booleans(),
        fault_percent=st.sampled_from((0, 0, 3, 15)),
        second_operator_stays=st.booleans(),
        train_seconds=st.sampled_from((60.0, 600.0) if resizes else (5.0, 60.0, 600.0)),
        fates=st.lists(fates(), min_size=1, max_size=6).map(tuple),
        steps=st.lists(steps(focus), min_size=4, max_size=24).map(lambda drawn: (*first, *drawn, *last)),
    )
