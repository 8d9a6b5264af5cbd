"""Code of this machine runs in real pods without an image of its own, and its ranks can be looked into."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from ddpjob.client import Client

TRAIN = """\
import torch
from ddpjob.session import Session
from net.layers import WIDTH

with Session() as session:
    model = session.replicate(torch.nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.track(model=model, optimizer=optimizer)
    for _ in session.steps(total=10**9):
        optimizer.zero_grad()
        model(torch.rand(8, WIDTH)).mean().backward()
        optimizer.step()
"""


@pytest.fixture
def client(cluster, namespace: str) -> Iterator[Client]:
    with Client(kubeconfig=str(cluster.kubeconfig), namespace=namespace) as client:
        yield client


def test_files_of_this_machine_train_and_their_ranks_answer(
    client: Client, cluster, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/layers.py").write_text("WIDTH = 3\n")
    (tmp_path / "train.py").write_text(TRAIN)
    job = client.submit({"spec": {"command": ["python", "train.py"], "nodes": 2}}, name="own", files=tmp_path)
    client.wait("own", until="running", timeout=300)

    def trains() -> bool:
        assert not (seen := client.get("own")).finished, seen.status.message
        found = client.progress("own")
        return [rank.rank for rank in found if rank.state and rank.state.step > 0] == [0, 1]

    testbed.wait_for("two ranks that train", trains)
    stacks = client.stacks("own", ranks={1})
    assert [found.rank for found in stacks] == [1]
    assert 'File "/workspace/' in stacks[0].text
    assert "in <module>" in stacks[0].text

    client.delete(job.name)
    testbed.wait_for(
        "the end of the job's ConfigMap",
        lambda: "own-files-" not in cluster.kubectl("get", "configmaps", "-n", namespace, "-o", "name"),
    )


def hello(greeting: str) -> None:
    import os

    print(greeting, os.environ["RANK"], os.environ["WORLD_SIZE"])


def test_a_python_function_runs_in_each_rank(client: Client) -> None:
    job = client.submit(hello, nodes=2, args={"greeting": "hello"})
    done = client.wait(job.name, timeout=300)
    assert done.succeeded, done.status.message
    assert sorted(line.text for line in client.logs(job.name)) == ["hello 0 2", "hello 1 2"]
