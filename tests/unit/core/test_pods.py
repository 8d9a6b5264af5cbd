"""Pods as they are rendered from the spec of a job."""

import json
from dataclasses import replace

import pytest

from ddpjob_cli.local.program import expanded
from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.status import Restarts
from ddpjob_operator.core.actions import CreatePod
from ddpjob_operator.core.plan import plan
from ddpjob_operator.core.render import pods
from ddpjob_operator.core.render.pods import create_pod, spec_hash
from ddpjob_operator.core.times import rfc3339
from support import builders
from support.builders import NOW, job, observed


def body(of, rank=0):
    return create_pod(of, of.spec, "image:1", rank).body


def main(of, rank=0):
    return next(c for c in body(of, rank)["spec"]["containers"] if c["name"] == "trainer")


def environment(of, rank=0):
    return builders.environment(body(of, rank))


@pytest.mark.parametrize(
    ("nodes", "processes", "rank", "expected"),
    [
        (1, 1, 0, {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}),
        (4, 1, 3, {"WORLD_SIZE": "4", "RANK": "3", "NODE_RANK": "3", "NNODES": "4", "PET_NODE_RANK": "3"}),
        (2, 4, 1, {"WORLD_SIZE": "8", "RANK": "4", "NODE_RANK": "1", "NPROC_PER_NODE": "4", "PET_NPROC_PER_NODE": "4"}),
    ],
)
def test_the_environment_of_the_process_group(nodes, processes, rank, expected) -> None:
    found = environment(job(command=["x"], nodes=nodes, processesPerNode=processes), rank)
    assert {name: found.get(name) for name in expected} == expected


def test_every_variable_of_the_contract_is_there() -> None:
    found = environment(job(checkpoint={"volume": {"emptyDir": {}}}, data={"volume": {"emptyDir": {}}}, gpusPerNode=1))
    assert found.pop("NODE_NAME") is None, "it has a valueFrom"
    assert " ".join(f"{name}={value}" for name, value in sorted(found.items())) == (
        "DDPJOB_ATTEMPT=1 DDPJOB_CHECKPOINT_DIR=/checkpoints/default/job DDPJOB_DATA_DIR=/data DDPJOB_GPUS_PER_NODE=1"
        " DDPJOB_NAME=job DDPJOB_NAMESPACE=default DDPJOB_UID=job-uid HOME=/home/ddpjob LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"
        " MASTER_ADDR=job-master.default.svc MASTER_PORT=29500 NNODES=1 NODE_RANK=0 NPROC_PER_NODE=1"
        " PET_MASTER_ADDR=job-master.default.svc PET_MASTER_PORT=29500 PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=1"
        " PYTHONUNBUFFERED=1 RANK=0 TMPDIR=/tmp TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor USER=ddpjob WORLD_SIZE=1"
    )


def test_checkpoints_in_an_object_store_and_a_cache_volume() -> None:
    of = job(checkpoint={"uri": "s3://bucket/runs/"}, cache={"volume": {"hostPath": {"path": "/var/cache/ddpjob"}}})
    found = environment(of)
    assert {name: value for name, value in found.items() if "CHECKPOINT" in name or "CACHE" in name} == {
        "DDPJOB_CHECKPOINT_URI": "s3://bucket/runs/default/job",
        "DDPJOB_CACHE_DIR": "/cache",
        "TORCHINDUCTOR_CACHE_DIR": "/cache/torchinductor",
        "TRITON_CACHE_DIR": "/cache/triton",
    }
    pod = body(of)["spec"]
    assert [volume for volume in pod["volumes"] if volume["name"] in ("cache", "checkpoints")] == [
        {"hostPath": {"path": "/var/cache/ddpjob"}, "name": "cache"}
    ]
    assert {"name": "cache", "mountPath": "/cache"} in pod["containers"][0]["volumeMounts"]


def test_launchers_may_restart_in_place_as_often_as_restarts_are_left() -> None:
    rules = [{"exitCodes": [7, 8], "action": "Fail"}, {"exitCodes": [9], "action": "Ignore"}]
    of = job(restart={"inPlace": True, "maxRestarts": 5, "rules": rules})
    used = replace(
        of, status=of.status.model_copy(update={"restarts": Restarts(counted=9, counted_times=[rfc3339(NOW)] * 2)})
    )
    assert [environment(found)["DDPJOB_IN_PLACE_RESTARTS"] for found in (of, used)] == ["5", "3"]
    assert environment(of)["DDPJOB_FINAL_EXIT_CODES"] == "7,8,9", "the operator decides what follows"
    assert "DDPJOB_STATE_IN_MEMORY" not in environment(of)
    without = job(restart={"inPlace": True, "stateInMemory": False})
    assert environment(without)["DDPJOB_STATE_IN_MEMORY"] == "0"


def test_agents_of_torchrun_restart_their_ranks_together_with_rank_0_in_the_first_pod() -> None:
    of = job(nodes=12, command=["torchrun", "x.py"], restart={"inPlace": True, "maxRestarts": 5})
    pods = [environment(of, rank) for rank in range(12)]
    assert {(pod["PET_RDZV_BACKEND"], pod["PET_MAX_RESTARTS"], pod["PET_RDZV_ID"]) for pod in pods} == {
        ("c10d", "5", "job-uid-1")
    }
    assert {pod["PET_RDZV_ENDPOINT"] for pod in pods} == {f"{pods[0]['MASTER_ADDR']}:{pods[0]['MASTER_PORT']}"}
    names = [pod["PET_LOCAL_ADDR"] for pod in pods]
    assert (names[0], sorted(names)) == (pods[0]["MASTER_ADDR"], names), (
        "c10d numbers nodes in the order of their names"
    )
    without = job(nodes=12, command=["torchrun", "x.py"])
    assert "PET_RDZV_BACKEND" not in environment(without)


@pytest.mark.parametrize(
    ("of", "names"),
    [
        (job(gpusPerNode=1, gpuResource="gpu.intel.com/xe"), {"DDPJOB_GPUS_PER_NODE"}),  # CUDA does not show them
        # The launcher sets them.
        (job(command=["torchrun", "x"], processesPerNode=2), {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}),
    ],
)
def test_variables_without_a_meaning_are_left_out(of, names) -> None:
    assert not (names | {"DDPJOB_IN_PLACE_RESTARTS"}) & set(environment(of))


def test_the_pods_of_an_attempt_differ_in_rank_alone() -> None:
    of = job(nodes=3, gpusPerNode=2)
    text = json.dumps(body(of, 2))
    for before, after in (('"2"', '"0"'), ("job-1-2", "job-1-0"), ('"4"', '"0"')):
        text = text.replace(before, after)
    assert text == json.dumps(body(of, 0)).replace('"2"', '"0"').replace('"4"', '"0"')


def test_the_trainer_is_started_with_its_configuration() -> None:
    of = job(
        trainer={"recipe": "digits", "globalBatchSize": 32}, checkpoint={"volume": {"emptyDir": {}}, "everySteps": 5}
    )
    *program, config = main(of)["command"]
    assert program == ["python", "-m", "ddpjob_trainer", "--config-json"]
    assert json.loads(config) == {"recipe": "digits", "globalBatchSize": 32, "checkpointEverySteps": 5}


def test_a_default_that_the_api_server_wrote_into_the_spec_is_left_out() -> None:
    of = job(trainer={"recipe": "digits", "perProcessBatchSize": 0, "seed": 0, "epochs": 3})
    assert json.loads(main(of)["command"][-1]) == {"recipe": "digits", "epochs": 3}


def test_dollars_in_settings_of_the_trainer_reach_it_as_written() -> None:
    settings = {"path": "$(RANK)/$$/${HOME}/$"}
    *_, config = main(job(trainer={"recipe": "digits", "settings": settings}))["command"]
    assert json.loads(expanded(config, {"RANK": "0"}))["settings"] == settings


def test_kubectl_logs_and_exec_mean_the_program_and_autoscalers_leave_a_running_gang_alone() -> None:
    assert body(job())["metadata"]["annotations"] == {
        "ddpjob.dev/spec-hash": spec_hash(job().spec),
        "kubectl.kubernetes.io/default-container": "trainer",
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
    users = {"karpenter.sh/do-not-disrupt": "false", "kubectl.kubernetes.io/default-container": "sidecar"}
    found = body(job(template={"metadata": {"annotations": users}}))["metadata"]["annotations"]
    assert found.items() >= users.items()


def test_a_command_runs_as_given_without_a_shell() -> None:
    command = ["torchrun", "train.py", "--name", "$(whoami); rm -rf /"]
    assert main(job(command=command))["command"] == command


def test_gpus_are_limits_of_the_resource() -> None:
    of = job(gpusPerNode=2, gpuResource="amd.com/gpu", resources={"limits": {"memory": "8Gi"}})
    assert main(of)["resources"] == {"limits": {"memory": "8Gi", "amd.com/gpu": "2"}}


def test_the_pod_is_restricted() -> None:
    made = body(job())["spec"]
    assert (made["automountServiceAccountToken"], made["enableServiceLinks"]) == (False, False)
    assert made["securityContext"]["runAsNonRoot"]
    assert main(job())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_template_wins_and_lists_merge_by_name() -> None:
    overlay = {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {
            "nodeSelector": {"gpu": "h200"},
            "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 5}],
            "containers": [{"name": "trainer", "imagePullPolicy": "Never"}, {"name": "sidecar", "image": "s:1"}],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    }
    made = body(job(template=overlay))
    assert made["metadata"]["labels"]["team"] == "vision"
    assert made["spec"]["nodeSelector"] == {"gpu": "h200"}
    assert [t["tolerationSeconds"] for t in made["spec"]["tolerations"]] == [30, 5]
    assert [c["name"] for c in made["spec"]["containers"]] == ["trainer", "sidecar"]
    assert made["spec"]["containers"][0]["imagePullPolicy"] == "Never"
    assert made["spec"]["containers"][0]["image"] == "image:1"
    assert made["spec"]["volumes"][0] == {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}


def test_users_variables_are_added() -> None:
    assert environment(job(env=[{"name": "NCCL_DEBUG", "value": "INFO"}]))["NCCL_DEBUG"] == "INFO"


def test_a_volume_source_in_the_template_replaces_the_default_one() -> None:
    overlay = {"spec": {"volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "c"}}]}}
    (home,) = (v for v in body(job(template=overlay))["spec"]["volumes"] if v["name"] == "home")
    assert home == {"name": "home", "persistentVolumeClaim": {"claimName": "c"}}


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"nodes": 3}, True),
        ({"image": "x:2"}, True),
        ({"securityProfile": "baseline"}, True),
        ({"template": {"spec": {"priorityClassName": "p"}}}, True),
        ({"suspend": True}, False),
        ({"restart": {"maxRestarts": 9}}, False),
        ({"nodes": 1}, False),  # a default
    ],
)
def test_the_hash_differs_for_specs_with_different_pods(change, differs) -> None:
    assert (spec_hash(job(**change).spec) != spec_hash(job().spec)) == differs


def test_items_of_the_template_that_share_a_key_all_stay() -> None:
    tolerations = [
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists", "effect": "NoExecute"},
        {"operator": "Exists"},
    ]
    made = body(job(template={"spec": {"tolerations": tolerations}}))["spec"]["tolerations"]
    assert made[2:] == tolerations


@pytest.mark.parametrize("volumes", [["x"], [None], [{"name": {"a": 1}}], [{"name": ["a"]}]])
def test_a_malformed_list_is_left_for_the_api_server_to_refuse(volumes) -> None:
    assert body(job(template={"spec": {"volumes": volumes}}))["spec"]["volumes"] == volumes


def test_a_volume_of_the_spec_keeps_its_name() -> None:
    of = job(data={"volume": {"name": "tmp", "emptyDir": {}}})
    assert body(of)["spec"]["volumes"][-1] == {"name": "data", "emptyDir": {}}


def test_the_pods_of_a_plan_share_what_takes_long_for_a_large_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observed(job(nodes=8, template={"spec": {"tolerations": [{"key": "a"}]}}))
    calls: list[DDPJobSpec] = []

    def counted(spec: DDPJobSpec) -> str:
        calls.append(spec)
        return spec_hash(spec)

    bodies = [action.body for action in plan(seen, NOW).actions if isinstance(action, CreatePod)]
    monkeypatch.setattr(pods, "spec_hash", counted)
    actions = [action for action in plan(seen, NOW).actions if isinstance(action, CreatePod)]
    assert [action.body for action in actions] == bodies
    assert len(calls) == 1
    actions[0].body["spec"]["tolerations"].clear()
    assert actions[1].body == bodies[1], "each has objects of its own"
