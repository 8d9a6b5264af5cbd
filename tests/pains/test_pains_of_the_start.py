"""Pains 7 to 10, 14 and 19: how ranks find each other and know who they are."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from torch.distributed.run import config_from_args, parse_args

import testbed
from builders import NOW, TRACEBACK, broken, created, ended, job, observed, program
from ddpjob_operator.api.names import Phase
from ddpjob_operator.core.model import CreatePod, CreateService, LowerPodDeadline, PatchService
from ddpjob_operator.core.plan import plan
from pain_steps import IMAGE, ROOT, bodies, environment, rendered, reported, survivors_gone, written

RUNS = {"running": {"startedAt": "2026-11-21T10:00:00Z"}}
DONE = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-21T10:09:00Z"}}


def test_pain_07_the_name_of_rank_0_is_there_before_any_pod_and_before_it_is_ready() -> None:
    of = program(nodes=3, masterPort=29600)
    service, *pods = plan(observed(of, service=None), NOW).actions

    assert isinstance(service, CreateService)
    assert [type(action) for action in pods] == [CreatePod] * 3
    assert (service.body["spec"]["clusterIP"], service.body["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert service.body["spec"]["ports"][0]["port"] == 29600
    for pod in pods:
        found = environment(pod.body)
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == (f"{service.name}.default.svc", "29600")


def test_pain_07_after_a_restart_the_name_means_the_new_rank_0_before_any_new_rank_asks() -> None:
    of = program(nodes=2)
    seen = survivors_gone(written(broken(of, ended(of, 0, code=1, message=TRACEBACK))))
    patch, *pods = plan(seen, NOW).actions

    assert isinstance(patch, PatchService)
    selector = patch.patch["spec"]["selector"]
    assert len(pods) == 2
    new, other, old = (body["metadata"]["labels"] for body in (*(pod.body for pod in pods), rendered(of)))
    assert selector.items() <= new.items()
    assert not selector.items() <= other.items()
    assert not selector.items() <= old.items()


def test_pain_07_a_rank_waits_for_a_name_that_does_not_resolve_yet(tmp_path) -> None:
    rank_1 = environment(rendered(job(nodes=2), 1))  # no DNS knows its MASTER_ADDR here
    folders = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ddpjob_trainer", "--set", "recipe=digits"],
            env={**rank_1, **folders, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "trainer")},
            stdout=output,
            stderr=output,
        )
    try:
        testbed.wait_for(
            f"two attempts to find rank 0, as told in {log}",
            lambda: log.read_text().count("job-master.default.svc") >= 2 or process.poll() is not None,
            seconds=120,
        )
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("of", [program(nodes=2, image=IMAGE), job(nodes=2)], ids=["own program", "trainer"])
def test_pain_08_a_pod_has_one_container_one_image_and_nothing_before_it(of) -> None:
    made = plan(observed(of, service=None, trainer_image=IMAGE), NOW)

    for body in bodies(made).values():
        assert [container["image"] for container in body["spec"]["containers"]] == [IMAGE]
        assert "initContainers" not in body["spec"]


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("processes", [1, 4])
def test_pain_09_rank_and_world_size_are_the_process_s_as_in_pytorch(nodes, processes) -> None:
    of = job(command=["torchrun", "train.py"], nodes=nodes, processesPerNode=processes)
    found = [environment(rendered(of, rank)) for rank in range(nodes)]

    assert {int(env["WORLD_SIZE"]) for env in found} == {nodes * processes}
    firsts = [int(env["RANK"]) for env in found]
    assert sorted(first + local for first in firsts for local in range(processes)) == list(range(nodes * processes))
    assert all(("LOCAL_RANK" in env) == (processes == 1) for env in found), "with more, only a launcher knows it"


@pytest.mark.parametrize(("nodes", "processes", "rank"), [(1, 2, 0), (2, 1, 1), (3, 4, 2)])
def test_pain_10_torchrun_needs_no_flags(monkeypatch, nodes, processes, rank) -> None:
    """torchrun's own parser, with nothing but the pod's environment."""
    of = job(command=["torchrun", "train.py"], nodes=nodes, processesPerNode=processes, masterPort=29600)
    for name, value in environment(rendered(of, rank)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else torchrun sets it in this very process
    config, _, _ = config_from_args(parse_args(["train.py"]))

    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (nodes, nodes, processes)
    assert (config.rdzv_backend, config.rdzv_endpoint) == ("static", "job-master.default.svc:29600")
    assert config.rdzv_configs["rank"] == rank


def test_pain_14_rank_0_is_pod_0_in_every_attempt_and_one_selector_finds_its_log() -> None:
    first = program(nodes=3)
    for attempt in (1, 2, 7):
        of = replace(first, status=first.status.model_copy(update={"attempt": attempt}))
        pods = bodies(plan(observed(of), NOW))
        ranks = {name: environment(body)["RANK"] for name, body in pods.items()}
        assert ranks == {f"job-{attempt}-{rank}": str(rank) for rank in range(3)}
        selected = [
            name
            for name, body in pods.items()
            if {"ddpjob.dev/job": "job", "ddpjob.dev/rank": "0"}.items() <= body["metadata"]["labels"].items()
        ]
        assert selected == [f"job-{attempt}-0"]


def test_pain_19_a_mesh_s_sidecar_hides_no_failure_and_keeps_no_job_alive() -> None:
    of = program(nodes=2)
    pods = [reported(of, rank, injected=["istio-proxy"], istio_proxy=RUNS, trainer=RUNS) for rank in range(2)]
    seen = written(observed(of, *pods))
    assert seen.job.status.phase == Phase.RUNNING

    done = [reported(of, rank, injected=["istio-proxy"], istio_proxy=RUNS, trainer=DONE) for rank in range(2)]
    seen = written(replace(seen, pods=tuple(done), logs={pod.uid: "" for pod in done}))
    assert seen.job.status.phase == Phase.SUCCEEDED
    assert plan(seen, NOW).actions == tuple(LowerPodDeadline(name=pod.name, uid=pod.uid) for pod in done)


def test_pain_19_one_label_in_the_template_keeps_a_mesh_out_of_every_pod() -> None:
    of = program(nodes=3, template={"metadata": {"labels": {"sidecar.istio.io/inject": "false"}}})
    made = plan(observed(of), NOW)

    assert len(created(made)) == 3
    assert {body["metadata"]["labels"]["sidecar.istio.io/inject"] for body in bodies(made).values()} == {"false"}
