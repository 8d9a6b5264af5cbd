"""On this machine, too, a pod that is replaced and its successor are two pods."""

import asyncio
import os
import sys
from pathlib import Path
from unittest.mock import Mock

from ddpjob_cli.local.kubelet import Folders, Kubelet
from ddpjob_cli.local.program import Machine
from ddpjob_operator.api.status import DDPJobStatus, ReplacedPod
from ddpjob_operator.core.render.pods import create_pod
from support.builders import job, with_status
from support.builders import observed as seen_of


async def test_the_successor_of_a_pod_has_folders_of_its_own(tmp_path: Path) -> None:
    of = job(nodes=2, command=["true", "ddpjob.launch"], restart={"inPlace": True})
    assert of.spec is not None
    replaced = DDPJobStatus(replaced_pods=[ReplacedPod(rank=1, replacement=1)])
    successor = with_status(seen_of(of), replaced).job
    machine = Machine(python=Path(sys.executable), environ=os.environ, num_cpus=1, master_port=29500, gpus=())
    folders = Folders(run=tmp_path / "run", temporary=tmp_path, working=tmp_path)
    folders.run.mkdir()
    async with asyncio.TaskGroup() as followers:
        kubelet = Kubelet(machine, folders, (), Mock(), followers, Mock(), Mock())
        for owner in (of, successor):
            body = create_pod(owner, of.spec, "local", 1).body
            await kubelet.create(
                {**body, "metadata": {**body["metadata"], "uid": body["metadata"]["name"]}}, plain=body
            )
    assert [(pod.name, pod.replacement, pod.is_supervised) for pod in kubelet.records()] == [
        ("job-1-1", 0, True),
        ("job-1-1-r1", 1, True),
    ]
