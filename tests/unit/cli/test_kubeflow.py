"""Jobs of Kubeflow become DDPJobs that the API server accepts, and what has no equivalent is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpjob_cli.kubeflow import ConversionError, convert
from ddpjob_cli.manifest import read_manifest

MNIST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: gpus, owner: vision}}
spec:
  nprocPerNode: "4"
  runPolicy: {backoffLimit: 5, ttlSecondsAfterFinished: 600, activeDeadlineSeconds: 7200, cleanPodPolicy: All,
    schedulingPolicy: {queue: gpus, priorityClass: high, minAvailable: 4}}
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: OnFailure
      template:
        metadata: {annotations: {sidecar.istio.io/inject: "false"}}
        spec:
          nodeSelector: {gpu: a100}
          containers:
            - name: pytorch
              image: registry.example.com/mnist:1
              command: [torchrun, --nnodes=4, --rdzv_endpoint, "mnist-master-0:23456", train.py]
              args: [--epochs, "3"]
              ports: [{containerPort: 23456, name: pytorchjob-port}]
              env: [{name: NCCL_DEBUG, value: INFO}, {name: MASTER_PORT, value: "1"}]
              resources: {limits: {nvidia.com/gpu: 4, memory: 64Gi}, requests: {cpu: 8, nvidia.com/gpu: 4}}
              volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes: [{name: shm, emptyDir: {medium: Memory}}]
    Worker:
      <<: *replica
      replicas: 3
"""
RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-distributed}
spec:
  mlPolicy: {numNodes: 1, torch: {numProcPerNode: auto}}
  template:
    spec:
      failurePolicy: {maxRestarts: 2}
      replicatedJobs:
        - name: dataset-initializer
        - name: node
          template:
            metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec: {template: {spec: {containers: [{name: node, image: registry.example.com/torch:2}]}}}
---
"""
TRAIN = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: fine-tune}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 2
    command: [torchrun, train.py]
    env: [{name: HF_HOME, value: /tmp/hf}]
    resourcesPerNode: {limits: {amd.com/gpu: 8}}
"""


def converted(text: str, folder: Path) -> dict[str, Any]:
    """The spec, after the rules of the API server have been applied to it."""
    file = folder / "ddpjob.yaml"
    file.write_text(convert(list(yaml.safe_load_all(text))))
    read_manifest(file)
    return yaml.safe_load(file.read_text())


def comments(text: str) -> str:
    return "".join(line for line in convert(list(yaml.safe_load_all(text))).splitlines() if line.startswith("#"))


def test_a_pytorch_job_becomes_a_ddpjob(tmp_path: Path) -> None:
    job = converted(MNIST, tmp_path)

    assert job["metadata"] == {"name": "mnist", "namespace": "team-a", "labels": {"owner": "vision"}}
    assert job["spec"] == {
        "nodes": 4,
        "gpusPerNode": 4,
        "image": "registry.example.com/mnist:1",
        "command": ["torchrun", "train.py", "--epochs", "3"],
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "resources": {"requests": {"cpu": 8}, "limits": {"memory": "64Gi"}},
        "scheduling": {"queueName": "gpus", "priorityClassName": "high"},
        "restart": {"maxRestarts": 5},
        "deadlines": {"activeSeconds": 7200},
        "ttlSecondsAfterFinished": 600,
        "template": {
            "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
            "spec": {
                "nodeSelector": {"gpu": "a100"},
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                "containers": [{"name": "trainer", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}],
            },
        },
    }
    for lost in (
        "schedulingPolicy (minAvailable)",
        "cleanPodPolicy",
        "--nnodes=4 --rdzv_endpoint mnist-master-0:23456",
    ):
        assert lost in comments(MNIST)


def test_a_train_job_takes_the_rest_from_its_runtime(tmp_path: Path) -> None:
    job = converted(RUNTIME + TRAIN, tmp_path)

    assert job["spec"] == {
        "nodes": 2,
        "gpusPerNode": 8,
        "gpuResource": "amd.com/gpu",
        "image": "registry.example.com/torch:2",
        "command": ["torchrun", "train.py"],
        "env": [{"name": "HF_HOME", "value": "/tmp/hf"}],
        "restart": {"maxRestarts": 2},
    }
    assert "dataset-initializer" in comments(RUNTIME + TRAIN)


@pytest.mark.parametrize(
    ("controller", "kept"),
    [("kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/multikueue"), ("kubeflow.org/training-operator", None)],
)
def test_another_controller_keeps_the_job(controller: str, kept: str | None, tmp_path: Path) -> None:
    text = MNIST.replace("runPolicy: {", f"runPolicy: {{managedBy: {controller}, ")
    assert converted(text, tmp_path)["spec"].get("managedBy") == kept


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nprocPerNode: \"4\"", "elasticPolicy: {minReplicas: 1, maxReplicas: 3}", "1 to 3 replicas"),
        ("nprocPerNode: \"4\"", "nprocPerNode: cpu", "One process for each CPU"),
        ("restartPolicy: OnFailure", "restartPolicy: ExitCode", "every exit code from 1 to 127"),
        ("      replicas: 3", "      replicas: 3\n      template: {spec: {containers: [{name: pytorch, image: x, command: [a]}]}}", "different templates"),
    ],
)  # fmt: skip
def test_what_has_no_equivalent_is_named(old: str, new: str, said: str) -> None:
    assert old in MNIST
    assert said in comments(MNIST.replace(old, new))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod", "found Pod; expected one PyTorchJob, or one TrainJob with its runtime"),
        (
            MNIST.replace("name: pytorch\n", "name: main\n"),
            "found the containers main; expected one with the name pytorch",
        ),
        (TRAIN, r"the image is that of ClusterTrainingRuntime torch-distributed, which is not in the file; append it"),
        (RUNTIME.replace("torch: {numProcPerNode: auto}", "mpi: {}") + TRAIN, "its runtime is for mpi"),
        ("{kind: PyTorchJob, metadata: {name: x}, spec: {}}", "pytorchReplicaSpecs is empty"),
    ],
)
def test_what_cannot_be_converted_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConversionError, match=said):
        convert(list(yaml.safe_load_all(text)))


def test_a_name_in_a_file_forges_no_line_of_the_converted_one() -> None:
    (job,) = yaml.safe_load_all(MNIST)
    job["metadata"]["name"] = "x\nkind: Secret"
    job["spec"]["runPolicy"]["schedulingPolicy"] = {"q\nkind: Secret": 1}
    job["spec"]["elasticPolicy"] = {"rdzvBackend": "c10d\nkind: Secret", "minReplicas": "1\nkind: Secret"}
    assert "\nkind: Secret" not in convert([job])
