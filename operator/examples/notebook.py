"""A notebook that trains on a cluster, as cells: open it in VS Code, PyCharm or Jupyter (jupytext), or run it as a script."""

# %% Connect, with the kubeconfig and namespace of kubectl
from ddpjob.client import Client

client = Client().__enter__()  # a notebook has no block to put it into; the last cell closes it
print(f"namespace {client.namespace} on {client.server}")


# %% What each rank runs: a function that is complete in itself, so it imports what it needs
def train(epochs: int, rate: float = 0.1) -> None:
    """Print where this rank is; a real one trains here."""
    import os

    rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    for epoch in range(epochs):
        print(f"rank {rank} of {world_size}: epoch {epoch}, rate {rate}", flush=True)


# %% Submit it to two pods. `files="."` would send the files of this directory along
job = client.submit(train, nodes=2, args={"epochs": 3}, spec={"ttlSecondsAfterFinished": 3600})
print(f"submitted {job.name}")

# %% Follow the lines of all ranks until the job has finished
for line in client.logs(job.name, follow=True, on_note=print):
    print(f"[{line.rank}] {line.text}")

# %% See how it ended
job = client.wait(job.name, timeout=60)
print(f"{job.name} {'succeeded' if job.succeeded else f'failed: {job.status.message}'} in attempt {job.status.attempt}")
for pod in client.pods(job):
    print(pod.rank, pod.node, pod.state, pod.exit_code)

# %% Clean up
client.delete(job.name)
client.__exit__()
